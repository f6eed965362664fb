package sparkmirror;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.function.Function;

import org.apache.spark.sql.Column;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.classic.ColumnNodeToExpressionConverter$;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.ObjectType;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;

/**
 * Builds the expression for a call of one of our functions in a user's SQL.
 *
 * What is wrong with a call is an IllegalArgumentException: the driver adds key and line.
 */
public final class RecordFunctions extends AbstractFunction1 {
    private final String name;
    private final byte[] salt;
    private final Map tables;

    /**
     * salt: that of hash_json, null if the file has none. It is not part of any plan. tables: a Table
     * by its name.
     */
    public RecordFunctions(String name, byte[] salt, Map tables) {
        this.name = name;
        this.salt = salt;
        this.tables = tables;
    }

    public Object apply(Object given) {
        Seq arguments = (Seq) given;
        if (name.equals("header")) {
            return header(arguments);
        }
        if (name.equals("lookup")) {
            return lookup(arguments);
        }
        boolean masks = name.equals("mask_json");
        int count = arguments.length();
        if (count != 2 && !(masks && count == 3)) {
            throw wrong("it takes a value and a path" + (masks ? ", and may take a mask" : ""));
        }
        Expression value = (Expression) arguments.apply(0);
        if (!isText(value)) {
            throw wrong("its first argument is of type " + value.dataType().simpleString()
                + ", not binary or string");
        }
        String path = text((Expression) arguments.apply(1), "path");
        if (path == null) {
            throw wrong("its path is NULL");
        }
        List steps = steps(path);
        byte[][] names = new byte[steps.size()][];
        int[] indexes = new int[steps.size()];
        for (int index = 0; index < names.length; index++) {
            Object step = steps.get(index);
            names[index] = step instanceof String
                ? ((String) step).getBytes(StandardCharsets.UTF_8) : null;
            indexes[index] = step instanceof Integer ? ((Integer) step).intValue() : -1;
        }
        byte[] mask = quoted("***");
        if (count == 3) {
            mask = quoted(text((Expression) arguments.apply(2), "mask"));
        }
        if (name.equals("hash_json") && salt == null) {
            throw wrong("it needs a salt");
        }
        String kind = name.substring(0, name.indexOf('_'));
        UDF1 function = new JsonFunction(kind, names, indexes, mask, salt);
        // As bytes: as a string of Java, a value that is no UTF-8 would become another one, and pass.
        Column bytes = ExpressionUtils.column(value).cast(DataTypes.BinaryType);
        // The name is what plans show of the call, besides the value.
        return built(
            functions.udf(function, DataTypes.BinaryType).withName(name + "[" + path + "]")
                .apply(new Column[] {bytes}));
    }

    /** The value of the last header with that name. */
    private Expression header(Seq arguments) {
        if (arguments.length() != 1) {
            throw wrong("it takes the name of a header");
        }
        Expression key = (Expression) arguments.apply(0);
        if (!key.dataType().equals(DataTypes.StringType)) {
            throw wrong("its name is of type " + key.dataType().simpleString() + ", not string");
        }
        Column headers = functions.col("headers");
        Column at = functions.array_position(
            functions.reverse(headers.getField("key")), ExpressionUtils.column(key));
        // An array begins at 1; 0 means that there is no such header. As a string the bytes stay
        // as they are, also if they are no UTF-8.
        Column found = functions.nullif(at, functions.lit(Long.valueOf(0L)));
        Column value = functions.try_element_at(
            functions.reverse(headers.getField("value")), found.cast(DataTypes.IntegerType));
        return built(value.cast(DataTypes.StringType));
    }

    /** The row of a table in which a column has the given value, as a struct; or null. */
    private Expression lookup(Seq arguments) {
        if (arguments.length() != 3) {
            throw wrong("it takes a table, one of its columns and a value, as in "
                + "lookup('customers', 'id', CAST(key AS STRING))");
        }
        String named = text((Expression) arguments.apply(0), "table");
        String column = text((Expression) arguments.apply(1), "column");
        Table table = (Table) tables.get(named);
        if (table == null) {
            throw wrong("there is no table '" + named + "' in tables"
                + (tables.isEmpty() ? "" : ", but " + String.join(", ", new TreeSet(tables.keySet()))));
        }
        int at = column == null ? -1 : table.column(column);
        if (at < 0) {
            throw wrong("the table " + named + " has no column '" + column + "', but "
                + String.join(", ", table.schema().fieldNames()));
        }
        DataType type = table.schema().fields()[at].dataType();
        Expression key = key((Expression) arguments.apply(2), type, named + "." + column);
        Literal target = new Literal(table.lookup(at), new ObjectType(Function.class));
        // A null as the value gives null, without a call.
        return new Invoke(target, "apply", table.schema(), Nil$.MODULE$.$colon$colon(key),
            Nil$.MODULE$, true, true, true);
    }

    /** What is looked up, as a key of a Lookup. */
    private Expression key(Expression given, DataType column, String where) {
        String kind = kind(column);
        String found = given.dataType().equals(DataTypes.NullType) ? kind : kind(given.dataType());
        if (kind == null) {
            throw wrong("rows cannot be found by " + where + ", which is of type "
                + column.simpleString() + "; give the table a schema with another one, "
                + "such as STRING or DECIMAL(20, 4)");
        }
        if (!kind.equals(found) && !(kind.equals("decimal") && "integer".equals(found))) {
            throw wrong("its value is of type " + given.dataType().simpleString() + ", and " + where
                + " is of type " + column.simpleString() + "; write CAST(… AS "
                + column.sql() + ")");
        }
        Column key = ExpressionUtils.column(given);
        if (kind.equals("integer")) {
            return built(key.cast(DataTypes.LongType));
        }
        if (kind.equals("decimal") && !(given.dataType() instanceof DecimalType)) {
            return built(key.cast(new DecimalType(20, 0)));
        }
        if (kind.equals("binary")) {
            return built(key.cast(DataTypes.StringType));
        }
        return given.dataType().equals(DataTypes.NullType) ? built(key.cast(column)) : given;
    }

    /** Types whose values can be equal; null for those by which no row is found. */
    private static String kind(DataType type) {
        if (type.equals(DataTypes.ByteType) || type.equals(DataTypes.ShortType)
            || type.equals(DataTypes.IntegerType) || type.equals(DataTypes.LongType)) {
            return "integer";
        }
        if (type instanceof DecimalType) {
            return "decimal";
        }
        boolean exact = type.equals(DataTypes.StringType) || type.equals(DataTypes.BinaryType)
            || type.equals(DataTypes.BooleanType) || type.equals(DataTypes.DateType)
            || type.equals(DataTypes.TimestampType) || type.equals(DataTypes.TimestampNTZType);
        return exact ? type.simpleString() : null;
    }

    private static Expression built(Column column) {
        return ColumnNodeToExpressionConverter$.MODULE$.apply(column.node());
    }

    private static boolean isText(Expression one) {
        DataType type = one.dataType();
        return type.equals(DataTypes.BinaryType) || type.equals(DataTypes.StringType)
            || type.equals(DataTypes.NullType);
    }

    private String text(Expression one, String what) {
        if (!one.foldable()) {
            throw wrong("its " + what + " must be a text in quotes, the same for all records");
        }
        Object found = one.eval(null);
        if (found != null && !one.dataType().equals(DataTypes.StringType)) {
            throw wrong("its " + what + " is of type " + one.dataType().simpleString()
                + ", not string");
        }
        return found == null ? null : found.toString();
    }

    /** The steps of a path: a String per field, an Integer per element, -1 for all elements. */
    private List steps(String path) {
        List steps = new ArrayList();
        int at = 1;
        if (!path.startsWith("$")) {
            throw badPath(path);
        }
        while (at < path.length()) {
            int end;
            if (path.charAt(at) == '.') {
                end = at + 1;
                while (end < path.length() && ".['\"]*".indexOf(path.charAt(end)) < 0) {
                    end++;
                }
                steps.add(path.substring(at + 1, end));
                if (end == at + 1) {
                    throw badPath(path);
                }
            } else if (path.startsWith("['", at)) {
                int quote = path.indexOf("']", at + 2);
                if (quote < 0) {
                    throw badPath(path);
                }
                steps.add(path.substring(at + 2, quote));
                end = quote + 2;
            } else if (path.startsWith("[*]", at)) {
                steps.add(Integer.valueOf(-1));
                end = at + 3;
            } else {
                int bracket = path.indexOf(']', at);
                if (path.charAt(at) != '[' || bracket < 0
                    || !path.substring(at + 1, bracket).matches("[0-9]{1,9}")) {
                    throw badPath(path);
                }
                steps.add(Integer.valueOf(path.substring(at + 1, bracket)));
                end = bracket + 1;
            }
            at = end;
        }
        if (steps.isEmpty()) {
            throw badPath(path);
        }
        return steps;
    }

    /** A text as JSON; null becomes JSON's null. */
    private static byte[] quoted(String text) {
        StringBuilder made = new StringBuilder();
        if (text == null) {
            made.append("null");
        } else {
            made.append('"');
            for (int index = 0; index < text.length(); index++) {
                char one = text.charAt(index);
                if (one == '"' || one == '\\') {
                    made.append('\\').append(one);
                } else if (one < ' ') {
                    made.append("\\u00").append(one < 16 ? "0" : "")
                        .append(Integer.toHexString(one));
                } else {
                    made.append(one);
                }
            }
            made.append('"');
        }
        return made.toString().getBytes(StandardCharsets.UTF_8);
    }

    private IllegalArgumentException badPath(String path) {
        return wrong("its path '" + path + "' leads to no field; write it as in '$.card', "
            + "'$.customer.card', '$.items[*].card', '$.items[0]' or \"$['a.b']\"");
    }

    private IllegalArgumentException wrong(String what) {
        return new IllegalArgumentException(name + ": " + what);
    }
}
