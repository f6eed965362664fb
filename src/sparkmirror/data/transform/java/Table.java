package sparkmirror;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A static table in the driver: its rows, and a Lookup for each column that SQL looks values up in.
 *
 * Keys of a Lookup are Spark's internal values. Integers of all sizes are longs, and bytes are a
 * string of the same bytes, so that equal keys are equal for Java. Rows without a key are in none.
 */
public final class Table {
    private final JavaSparkContext context;
    private final String name;
    private final StructType schema;
    private final Map lookups = new HashMap(); // a column's number → its Lookup
    private List rows = new ArrayList();

    public Table(JavaSparkContext context, String name, StructType schema) {
        this.context = context;
        this.name = name;
        this.schema = schema;
    }

    public StructType schema() {
        return schema;
    }

    public int size() {
        return rows.size();
    }

    /**
     * Take the rows of an iterator over UnsafeRows. The result says why they are refused, and is null
     * if they are not; after a refusal the table has the rows of before.
     */
    public String read(scala.collection.Iterator found, int rowsMax, int bytesMax) {
        forget(); // else three times the rows would be in memory
        List read = new ArrayList();
        long bytes = 0;
        while (found.hasNext()) {
            UnsafeRow row = ((UnsafeRow) found.next()).copy();
            bytes += row.getSizeInBytes();
            if (read.size() == rowsMax) {
                return "it has more than " + rowsMax + " rows";
            }
            if (bytes > bytesMax) {
                return "its rows have more than " + bytesMax + " bytes";
            }
            read.add(row);
        }
        return take(read);
    }

    private synchronized void forget() {
        for (Iterator each = lookups.values().iterator(); each.hasNext();) {
            ((Lookup) each.next()).forget();
        }
    }

    private synchronized String take(List read) {
        Map made = new HashMap();
        for (Iterator each = lookups.keySet().iterator(); each.hasNext();) {
            Integer column = (Integer) each.next();
            Map index = new HashMap();
            String fault = index(read, column.intValue(), index);
            if (fault != null) {
                return fault;
            }
            made.put(column, index);
        }
        // All or none: a broadcast takes time, and may fail.
        Map sent = new HashMap();
        for (Iterator each = made.keySet().iterator(); each.hasNext();) {
            Object column = each.next();
            sent.put(column, context.broadcast(made.get(column)));
        }
        for (Iterator each = sent.keySet().iterator(); each.hasNext();) {
            Object column = each.next();
            ((Lookup) lookups.get(column)).replace(
                (Map) made.get(column), (Broadcast) sent.get(column));
        }
        rows = read;
        return null;
    }

    /** The number of a column; -1 if there is none. */
    public int column(String named) {
        for (int pass = 0; pass < 2; pass++) {
            for (int at = 0; at < schema.length(); at++) {
                String one = schema.fields()[at].name();
                if (pass == 0 ? one.equals(named) : one.equalsIgnoreCase(named)) {
                    return at;
                }
            }
        }
        return -1;
    }

    /** Finds rows by column number at. An IllegalArgumentException says that a value is not unique. */
    public synchronized Lookup lookup(int at) {
        Integer column = Integer.valueOf(at);
        Lookup found = (Lookup) lookups.get(column);
        if (found == null) {
            Map index = new HashMap();
            String fault = index(rows, at, index);
            if (fault != null) {
                throw new IllegalArgumentException("lookup: the table " + name + ": " + fault);
            }
            found = new Lookup("lookup[" + name + "." + schema.fields()[at].name() + "]");
            found.replace(index, context.broadcast(index));
            lookups.put(column, found);
        }
        return found;
    }

    /** Fill an index; why that is impossible, or null. It names no value: logs would show it. */
    private String index(List read, int at, Map index) {
        DataType type = schema.fields()[at].dataType();
        int repeated = 0;
        for (int number = 0; number < read.size(); number++) {
            UnsafeRow row = (UnsafeRow) read.get(number);
            if (!row.isNullAt(at) && index.put(key(row, at, type), row) != null) {
                repeated++;
            }
        }
        return repeated == 0 ? null : "its column " + schema.fields()[at].name() + " is no key: "
            + repeated + " row(s) repeat the value of another row; keep one row for each value";
    }

    private static Object key(UnsafeRow row, int at, DataType type) {
        if (type instanceof DecimalType) {
            DecimalType decimal = (DecimalType) type;
            return row.getDecimal(at, decimal.precision(), decimal.scale());
        }
        if (type.equals(DataTypes.BinaryType)) {
            return UTF8String.fromBytes(row.getBinary(at));
        }
        if (type.equals(DataTypes.BooleanType)) {
            return Boolean.valueOf(row.getBoolean(at));
        }
        if (type.equals(DataTypes.ByteType)) {
            return Long.valueOf(row.getByte(at));
        }
        if (type.equals(DataTypes.ShortType)) {
            return Long.valueOf(row.getShort(at));
        }
        if (type.equals(DataTypes.IntegerType)) {
            return Long.valueOf(row.getInt(at));
        }
        if (type.equals(DataTypes.DateType)) {
            return Integer.valueOf(row.getInt(at));
        }
        return type.equals(DataTypes.StringType) ? row.getUTF8String(at)
            : Long.valueOf(row.getLong(at)); // bigint, or microseconds of a timestamp
    }
}
