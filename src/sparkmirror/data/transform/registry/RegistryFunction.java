package sparkmirror;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.api.java.UDF2;

/**
 * decode_registry (one argument) and encode_registry (two; which message is fixed).
 *
 * A value in the registry's format has a byte 0, the schema's id in four bytes, and the payload.
 * Protobuf's begins with the numbers of its message.
 */
public final class RegistryFunction implements UDF1, UDF2 {
    private static final int HEAD = 5;
    private static final JsonFunction CHECK =
        new JsonFunction("drop", new byte[0][], new int[0], null, null);

    private final SchemaRegistry registry;
    private final String message;

    /** message: which of a Protobuf schema is written; null: the value's, or the first one. */
    public RegistryFunction(SchemaRegistry registry, String message) {
        this.registry = registry;
        this.message = message;
    }

    /** The value as JSON; null stays null. */
    public Object call(Object value) throws Exception {
        if (value == null) {
            return null;
        }
        byte[] data = (byte[]) value;
        int id = id(data);
        SchemaRegistry.Registered schema = usable(registry, id, null);
        try {
            if (schema.avro != null) {
                return AvroToJson.text(schema.avro, data, HEAD);
            }
            if (schema.proto != null) {
                return schema.proto.text(data, HEAD);
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
        SchemaRegistry.Registered found = usable(registry, id, message);
        try {
            if (found.proto != null) {
                int[] numbers = message == null && schema instanceof byte[]
                    ? ProtoSchema.numbersOf((byte[]) schema, HEAD) : found.proto.numbers(message);
                return found.proto.bytes(text, head, numbers);
            }
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

    /** The schema of that id, if it is of a type that we know and has the message. */
    public static SchemaRegistry.Registered usable(
        SchemaRegistry registry, int id, String message) {
        SchemaRegistry.Registered found;
        try {
            found = registry.schema(id);
        } catch (StackOverflowError error) {
            throw deep(id);
        }
        if (found.avro == null && found.proto == null && !found.type.equals("JSON")) {
            throw new RegistryException("schema " + id + " is of type " + found.type
                + "; decode_registry and encode_registry know AVRO, JSON and PROTOBUF");
        }
        if (message != null) {
            if (found.proto == null) {
                throw new RegistryException("schema " + id + " is of type " + found.type
                    + "; only those of type PROTOBUF have messages to choose from");
            }
            try {
                found.proto.numbers(message);
            } catch (RegistryException error) {
                throw error.of(id);
            }
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
