package sparkmirror;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.TryEval;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeBlock;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator$;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprCode;
import scala.collection.immutable.List;
import scala.collection.immutable.Nil$;

/**
 * Spark's TryEval, which also gives null if the stack overflows.
 *
 * Java's regular expressions call themselves for each character of some loops, such as
 * "(?:[^"\\]|\\.)*". A long value would end Spark's JVM, and the same record would end the next one.
 */
public final class TryRecord extends TryEval {
    public TryRecord(Expression child) {
        super(child);
    }

    public Object eval(InternalRow input) {
        try {
            return super.eval(input);
        } catch (StackOverflowError error) {
            return null;
        }
    }

    public ExprCode doGenCode(CodegenContext context, ExprCode made) {
        ExprCode child = child().genCode(context);
        String type = CodeGenerator$.MODULE$.javaType(dataType());
        String nothing = CodeGenerator$.MODULE$.defaultValue(dataType(), false);
        List parts = list(new Object[] {
            "boolean ", " = true;\n" + type + " ", " = " + nothing + ";\ntry {\n", "\n", " = ",
            ";\n", " = ", ";\n} catch (Exception e) {\n} catch (StackOverflowError e) {\n}\n"});
        List inputs = list(new Object[] {
            made.isNull(), made.value(), child.code(), made.isNull(), child.isNull(), made.value(),
            child.value()});
        return new ExprCode(new CodeBlock(parts, inputs), made.isNull(), made.value());
    }

    public Expression withNewChildInternal(Expression child) {
        return new TryRecord(child);
    }

    private static List list(Object[] items) {
        List made = Nil$.MODULE$;
        for (int index = items.length - 1; index >= 0; index--) {
            made = made.$colon$colon(items[index]);
        }
        return made;
    }
}
