package sparkmirror;

import org.apache.spark.sql.Column;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.api.java.UDF2;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.classic.ColumnNodeToExpressionConverter$;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;

/**
 * Builds the expression for a call of decode_registry or encode_registry in a user's SQL.
 *
 * What is wrong with a call is an IllegalArgumentException: the driver adds key and line.
 */
public final class RegistryFunctions extends AbstractFunction1 {
    private final String name;
    private final SchemaRegistry registry;

    /** registry: with its login. It is not part of any plan. */
    public RegistryFunctions(String name, SchemaRegistry registry) {
        this.name = name;
        this.registry = registry;
    }

    public Object apply(Object given) {
        Seq arguments = (Seq) given;
        boolean decodes = name.equals("decode_registry");
        int count = arguments.length();
        if (decodes ? count != 1 : count != 2 && count != 3) {
            throw wrong("it takes "
                + (decodes ? "a value" : "JSON and a schema, and for Protobuf a message's name"));
        }
        Expression first = (Expression) arguments.apply(0);
        boolean text = first.dataType().equals(DataTypes.StringType) && !decodes;
        if (!text && !isBinary(first.dataType())) {
            throw wrong("its first argument is of type " + first.dataType().simpleString()
                + ", not binary" + (decodes ? "" : " or string"));
        }
        Column value = ExpressionUtils.column(first);
        Column made;
        if (decodes) {
            UDF1 function = new RegistryFunction(registry, null);
            made = functions.udf(function, DataTypes.StringType).withName(name)
                .apply(new Column[] {value});
        } else {
            String message = count < 3 ? null : message((Expression) arguments.apply(2));
            UDF2 function = new RegistryFunction(registry, message);
            made = functions.udf(function, DataTypes.BinaryType).withName(name)
                .apply(new Column[] {value, schema((Expression) arguments.apply(1), message)});
        }
        return ColumnNodeToExpressionConverter$.MODULE$.apply(made.node());
    }

    /** A column with ids, or with values that have the schema. */
    private Column schema(Expression given, String message) {
        DataType type = given.dataType();
        boolean number = type.equals(DataTypes.IntegerType) || type.equals(DataTypes.LongType);
        if (!number && !isBinary(type) && !type.equals(DataTypes.StringType)) {
            throw wrong("its second argument is of type " + type.simpleString()
                + "; give a schema's id, a subject, or a value with the schema");
        }
        if (number && !given.foldable() || isBinary(type)) {
            return ExpressionUtils.column(given);
        }
        if (!given.foldable()) {
            throw wrong("its subject must be a text in quotes, the same for all records");
        }
        Object constant = given.eval(null);
        if (constant == null) {
            throw wrong("its second argument is NULL");
        }
        try {
            int id = number ? Math.toIntExact(((Number) constant).longValue())
                : registry.latest(constant.toString());
            SchemaRegistry.Registered found = RegistryFunction.usable(registry, id, message);
            if (found.proto != null) {
                found.proto.numbers(message);
            }
            return functions.lit(Integer.valueOf(id));
        } catch (Exception error) {
            throw wrong(error.getMessage());
        }
    }

    private String message(Expression given) {
        Object constant = given.dataType().equals(DataTypes.StringType) && given.foldable()
            ? given.eval(null) : null;
        if (constant == null) {
            throw wrong("its message must be a name in quotes, the same for all records");
        }
        return constant.toString();
    }

    private static boolean isBinary(DataType type) {
        return type.equals(DataTypes.BinaryType) || type.equals(DataTypes.NullType);
    }

    private IllegalArgumentException wrong(String what) {
        return new IllegalArgumentException(name + ": " + what);
    }
}
