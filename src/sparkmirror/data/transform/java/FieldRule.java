package sparkmirror;

import java.util.function.Function;

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetJsonObject;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.ObjectType;
import scala.Function1;
import scala.collection.immutable.Nil$;
import scala.runtime.AbstractPartialFunction;

/** Puts a JsonField in the place of each get_json_object whose path it knows. */
public final class FieldRule extends Rule {
    public TreeNode apply(TreeNode plan) {
        return ((LogicalPlan) plan).transformAllExpressions(new Fields());
    }

    private static final class Fields extends AbstractPartialFunction {
        public boolean isDefinedAt(Object given) {
            return field(given) != null;
        }

        public Object applyOrElse(Object given, Function1 otherwise) {
            JsonField field = field(given);
            if (field == null) {
                return otherwise.apply(given);
            }
            Expression json = ((GetJsonObject) given).json();
            Literal target = new Literal(field, new ObjectType(Function.class));
            // A null as the document gives null, without a call.
            return new Invoke(target, "apply", DataTypes.StringType,
                Nil$.MODULE$.$colon$colon(json), Nil$.MODULE$, true, true, true);
        }

        private static JsonField field(Object given) {
            if (!(given instanceof GetJsonObject)) {
                return null;
            }
            GetJsonObject call = (GetJsonObject) given;
            if (!call.json().dataType().equals(DataTypes.StringType)
                || !(call.path() instanceof Literal)) {
                return null;
            }
            Object path = ((Literal) call.path()).value();
            return path != null && path.toString().matches("\\$(\\.[A-Za-z0-9_-]+)+")
                ? new JsonField(path.toString()) : null;
        }
    }
}
