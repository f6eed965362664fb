package sparkmirror;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.api.java.UDF2;

/**
 * decode_registry (one argument) and encode_registry (two).
 *
 * A value in the registry's format has a byte 0, the schema's id in four bytes, and the payload.
 */
public final class RegistryFunction implements UDF1, UDF2 {
    private static final int HEAD = 5;
    private static final JsonFunction CHECK =
        new JsonFunction("drop", new byte[0][], new int[0], null, null);

    private final SchemaRegistry registry;

    public RegistryFunction(SchemaRegistry registry) {
        this.registry = registry;
    }

    /** The value as JSON; null stays null. */
    public Object call(Object value) throws Exception {
        if (value == null) {
            return null;
        }
        byte[] data = (byte[]) value;
        int id = id(data);
        SchemaRegistry.Registered schema = usable(registry, id);
        try {
            if (schema.avro != null) {
                return AvroToJson.text(schema.avro, data, HEAD);
            }
            return new String(
                checked(Arrays.copyOfRange(data, HEAD, data.length)), StandardCharsets.UTF_8);
        } catch (RegistryException error) {
            throw error.of(id);
        } catch (StackOverflowError error) {
            throw deep(id);
        }
    }

    /** The JSON in the registry's format, with the schema of that id, or of that other value. */
    public Object call(Object json, Object schema) throws Exception {
        if (json == null) {
            return null;
        }
        byte[] text = json instanceof byte[] ? (byte[]) json
            : ((String) json).getBytes(StandardCharsets.UTF_8);
        if (schema == null) {
            throw new RegistryException("encode_registry has no schema: its second value is null");
        }
        int id = schema instanceof byte[] ? id((byte[]) schema) : number((Number) schema);
        byte[] head = ByteBuffer.allocate(HEAD).put((byte) 0).putInt(id).array();
        SchemaRegistry.Registered found = usable(registry, id);
        try {
            if (found.avro != null) {
                return JsonToAvro.bytes(found.avro, text, head);
            }
            checked(text);
            byte[] made = Arrays.copyOf(head, HEAD + text.length);
            System.arraycopy(text, 0, made, HEAD, text.length);
            return made;
        } catch (RegistryException error) {
            throw error.of(id);
        } catch (StackOverflowError error) {
            throw deep(id);
        }
    }

    /** The schema of that id, if it is of a type that we know. */
    public static SchemaRegistry.Registered usable(SchemaRegistry registry, int id) {
        SchemaRegistry.Registered found;
        try {
            found = registry.schema(id);
        } catch (StackOverflowError error) {
            throw deep(id);
        }
        if (found.avro == null && !found.type.equals("JSON")) {
            throw new RegistryException("schema " + id + " is of type " + found.type
                + "; decode_registry and encode_registry know AVRO and JSON");
        }
        return found;
    }

    private static int id(byte[] data) {
        if (data.length < HEAD || data[0] != 0) {
            throw new RegistryException("the value is not in the registry's format: it does not "
                + "begin with a byte 0 and a schema's id");
        }
        return ByteBuffer.wrap(data, 1, 4).getInt();
    }

    private static int number(Number given) {
        long found = given.longValue();
        if (found != (int) found) {
            throw new RegistryException("no schema has an id with more than 32 bits");
        }
        return (int) found;
    }

    private static byte[] checked(byte[] text) throws Exception {
        try {
            return (byte[]) CHECK.call(text);
        } catch (IllegalArgumentException error) {
            throw new RegistryException(error.getMessage());
        }
    }

    private static RegistryException deep(int id) {
        return new RegistryException("its levels do not fit into the task's stack").of(id);
    }
}
