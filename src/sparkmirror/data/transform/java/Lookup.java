package sparkmirror;

import java.io.Serializable;
import java.util.Map;
import java.util.function.Function;

import org.apache.spark.broadcast.Broadcast;

/**
 * What lookup() calls for each record: from the value of a column to the row of a static table.
 *
 * Keys and rows are Spark's internal values (see Table). Spark serializes this object with the tasks
 * of each epoch, so an epoch has the rows that were the newest when it began, and only those. Users'
 * generated code knows it as a Function of Java, because the compiler need not find our classes.
 */
public final class Lookup implements Function, Serializable {
    private final String name;
    private volatile Broadcast rows;
    private transient volatile Map known;
    private transient Broadcast before; // an epoch that still runs may have to read it again

    public Lookup(String name) {
        this.name = name;
    }

    /** The driver has read the table: known, and the same as a broadcast. */
    public void replace(Map known, Broadcast rows) {
        before = this.rows;
        this.rows = rows;
        this.known = known;
    }

    /** No epoch with the rows of before is running any more. */
    public void forget() {
        before = null;
    }

    public Object apply(Object key) {
        Map found = known;
        if (found == null) {
            try {
                found = (Map) rows.value();
            } catch (Exception error) {
                // An exception would make a bad record of each one. This is no fault of theirs, and
                // an Error ends the task, which then tries again.
                throw new Error("the rows of " + name + " cannot be fetched: " + error);
            }
            known = found;
        }
        return found.get(key);
    }

    /** For Spark's plans. */
    public String toString() {
        return name;
    }
}
