package sparkmirror;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.avro.LogicalType;
import org.apache.avro.LogicalTypes;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;

/** An Avro schema, or a part of it, in the form in which records are read and written quickly. */
public final class AvroType {
    public static final int NULL = 0;
    public static final int BOOLEAN = 1;
    public static final int INT = 2;
    public static final int LONG = 3;
    public static final int FLOAT = 4;
    public static final int DOUBLE = 5;
    public static final int BYTES = 6;
    public static final int STRING = 7;
    public static final int FIXED = 8;
    public static final int ENUM = 9;
    public static final int ARRAY = 10;
    public static final int MAP = 11;
    public static final int RECORD = 12;
    public static final int UNION = 13;

    /** More digits are a bomb, not a number: such decimals are shown as their bytes. */
    private static final int DIGITS_MAX = 1000;

    public static final int PLAIN = 0;
    public static final int DECIMAL = 1;
    public static final int DATE = 2;
    public static final int TIME = 3;
    public static final int TIMESTAMP = 4;
    public static final int LOCAL_TIMESTAMP = 5;
    public static final int UUID = 6;

    /** One of the constants; `logical` as well: what the JSON shows instead of the bare value. */
    public int kind;
    public int logical = PLAIN;
    /** How many of its units are in a second, of times. */
    public long unit = 0;
    public int precision = 0;
    public int scale = 0;
    /** The bytes of a fixed. */
    public int size = 0;
    /** How a union names this type. */
    public String name;
    /** Of fields and symbols, and the same as JSON, fields with their colon. */
    public String[] names;
    public byte[][] labels;
    /** Of fields and branches; of an array and a map only the first. */
    public AvroType[] types;
    /** Of fields, as Avro; null: the field has none. */
    public byte[][] defaults;
    /** A union's null, and its only other branch; -1: there is none. */
    public int absent = -1;
    public int only = -1;

    private AvroType() {}

    public static AvroType of(Schema schema) {
        return of(schema, new HashMap());
    }

    private static AvroType of(Schema schema, Map named) {
        Schema.Type type = schema.getType();
        boolean hasName = type == Schema.Type.RECORD || type == Schema.Type.ENUM
            || type == Schema.Type.FIXED;
        AvroType made = hasName ? (AvroType) named.get(schema.getFullName()) : null;
        if (made != null) {
            return made;
        }
        made = new AvroType();
        made.name = hasName ? schema.getFullName() : type.getName();
        if (hasName) {
            named.put(made.name, made); // before its fields, which may have this type again
        }
        made.fill(schema, type, named);
        return made;
    }

    private void fill(Schema schema, Schema.Type type, Map named) {
        if (type == Schema.Type.NULL) {
            kind = NULL;
        } else if (type == Schema.Type.BOOLEAN) {
            kind = BOOLEAN;
        } else if (type == Schema.Type.INT) {
            kind = INT;
        } else if (type == Schema.Type.LONG) {
            kind = LONG;
        } else if (type == Schema.Type.FLOAT) {
            kind = FLOAT;
        } else if (type == Schema.Type.DOUBLE) {
            kind = DOUBLE;
        } else if (type == Schema.Type.BYTES) {
            kind = BYTES;
        } else if (type == Schema.Type.STRING) {
            kind = STRING;
        } else if (type == Schema.Type.FIXED) {
            kind = FIXED;
            size = schema.getFixedSize();
        } else if (type == Schema.Type.ENUM) {
            kind = ENUM;
            label(schema.getEnumSymbols(), "");
        } else if (type == Schema.Type.ARRAY) {
            kind = ARRAY;
            types = new AvroType[] {of(schema.getElementType(), named)};
        } else if (type == Schema.Type.MAP) {
            kind = MAP;
            types = new AvroType[] {of(schema.getValueType(), named)};
        } else if (type == Schema.Type.UNION) {
            kind = UNION;
            branches(schema.getTypes(), named);
        } else {
            kind = RECORD;
            fields(schema.getFields(), named);
        }
        logical(schema.getLogicalType());
    }

    private void branches(List schemas, Map named) {
        types = new AvroType[schemas.size()];
        int others = 0;
        for (int index = 0; index < types.length; index++) {
            types[index] = of((Schema) schemas.get(index), named);
            if (types[index].kind == NULL) {
                absent = index;
            } else {
                only = others == 0 ? index : -1;
                others++;
            }
        }
    }

    private void fields(List listed, Map named) {
        types = new AvroType[listed.size()];
        defaults = new byte[types.length][];
        List called = new ArrayList();
        for (int index = 0; index < types.length; index++) {
            Schema.Field field = (Schema.Field) listed.get(index);
            called.add(field.name());
            types[index] = of(field.schema(), named);
            defaults[index] = field.hasDefaultValue() ? written(field) : null;
        }
        label(called, ":");
    }

    /** The default as Avro; null if it does not fit its type, as registries may accept it. */
    private static byte[] written(Schema.Field field) {
        try {
            ByteArrayOutputStream made = new ByteArrayOutputStream();
            BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(made, null);
            new GenericDatumWriter(field.schema())
                .write(GenericData.get().getDefaultValue(field), encoder);
            encoder.flush();
            return made.toByteArray();
        } catch (Exception error) {
            return null;
        } catch (StackOverflowError error) {
            return null; // a record whose default is a record of its own type
        }
    }

    private void label(List called, String after) {
        names = new String[called.size()];
        labels = new byte[names.length][];
        for (int index = 0; index < names.length; index++) {
            names[index] = (String) called.get(index);
            labels[index] = (quoted(names[index]) + after).getBytes(StandardCharsets.UTF_8);
        }
    }

    private void logical(LogicalType type) {
        String called = type == null ? "" : type.getName();
        boolean local = called.startsWith("local-");
        if (called.equals("decimal") && size <= DIGITS_MAX
                && ((LogicalTypes.Decimal) type).getPrecision() <= DIGITS_MAX) {
            logical = DECIMAL;
            precision = ((LogicalTypes.Decimal) type).getPrecision();
            scale = ((LogicalTypes.Decimal) type).getScale();
        } else if (called.equals("date")) {
            logical = DATE;
        } else if (called.equals("uuid") && kind == FIXED) {
            logical = UUID; // of a string, it is the string
        } else if (called.startsWith("time-")) {
            logical = TIME;
        } else if (local || called.startsWith("timestamp-")) {
            logical = local ? LOCAL_TIMESTAMP : TIMESTAMP;
        }
        if (called.endsWith("-millis")) {
            unit = 1000L;
        } else if (called.endsWith("-micros")) {
            unit = 1000000L;
        } else if (called.endsWith("-nanos")) {
            unit = 1000000000L;
        }
    }

    /** A text as a JSON string. */
    public static String quoted(String text) {
        StringBuilder made = new StringBuilder("\"");
        for (int index = 0; index < text.length(); index++) {
            char one = text.charAt(index);
            if (one == '"' || one == '\\') {
                made.append('\\').append(one);
            } else if (one < ' ') {
                made.append("\\u00").append(one < 16 ? "0" : "").append(Integer.toHexString(one));
            } else {
                made.append(one);
            }
        }
        return made.append('"').toString();
    }
}
