package sparkmirror;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;

/**
 * Writes JSON as one Avro record: the reverse of AvroToJson.
 *
 * Nothing is lost in silence: a field that the schema lacks, and a field without a value and
 * without a default, are errors. A text that reads like a number is taken for one, since mask_json
 * writes texts.
 */
public final class JsonToAvro {
    private static final int NUMBER_CHARS_MAX = 1000;
    private static final JsonFactory FACTORY = (JsonFactory) new JsonFactory()
        .setStreamReadConstraints(
            StreamReadConstraints.builder()
                .maxStringLength(AvroToJson.BYTES_MAX)
                .maxNestingDepth(AvroToJson.DEPTH_MAX)
                .maxNumberLength(NUMBER_CHARS_MAX)
                .build());

    private final ByteArrayOutputStream made = new ByteArrayOutputStream();

    private JsonToAvro() {}

    /** A number as it is written: a double would round it, and a decimal has no -0.0. */
    private static final class Digits {
        final String text;

        Digits(String text) {
            this.text = text;
        }
    }

    /** head: what stands in front of the record. */
    public static byte[] bytes(AvroType type, byte[] json, byte[] head) {
        JsonToAvro one = new JsonToAvro();
        one.made.write(head, 0, head.length);
        one.value(type, document(json));
        return one.made.toByteArray();
    }

    // -- JSON as Map, List, String, Digits, Boolean and null -------------------------------------

    /** Raises RegistryException for what is no JSON, or has the same field twice. */
    public static Object document(byte[] json) {
        try {
            String text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(json))
                .toString();
            JsonParser parser = FACTORY.createParser(text);
            try {
                Object found = read(parser, parser.nextToken());
                if (parser.nextToken() != null) {
                    throw new RegistryException("more text follows the JSON document");
                }
                return found;
            } finally {
                parser.close();
            }
        } catch (IOException error) {
            // Its message quotes the text.
            throw new RegistryException("the text is no JSON");
        }
    }

    /** The parser bounds the depth. */
    private static Object read(JsonParser parser, JsonToken token) throws IOException {
        if (token == JsonToken.START_OBJECT) {
            Map found = new LinkedHashMap();
            while (parser.nextToken() != JsonToken.END_OBJECT) {
                String name = parser.currentName();
                if (found.containsKey(name)) {
                    throw new RegistryException("an object has the same field twice");
                }
                found.put(name, read(parser, parser.nextToken()));
            }
            return found;
        }
        if (token == JsonToken.START_ARRAY) {
            List found = new ArrayList();
            for (JsonToken next = parser.nextToken(); next != JsonToken.END_ARRAY;
                next = parser.nextToken()) {
                found.add(read(parser, next));
            }
            return found;
        }
        if (token == JsonToken.VALUE_STRING) {
            return parser.getText();
        }
        if (token == JsonToken.VALUE_NUMBER_INT || token == JsonToken.VALUE_NUMBER_FLOAT) {
            return new Digits(parser.getText());
        }
        if (token == JsonToken.VALUE_TRUE || token == JsonToken.VALUE_FALSE) {
            return Boolean.valueOf(token == JsonToken.VALUE_TRUE);
        }
        if (token == JsonToken.VALUE_NULL) {
            return null;
        }
        throw new RegistryException("the text is no JSON");
    }

    // -- values ----------------------------------------------------------------------------------

    private void value(AvroType type, Object json) {
        switch (type.kind) {
            case AvroType.NULL:
                if (json != null) {
                    throw needs("null");
                }
                break;
            case AvroType.BOOLEAN:
                bool(json);
                break;
            case AvroType.INT:
            case AvroType.LONG:
                whole(type, json);
                break;
            case AvroType.FLOAT:
                real(Float.floatToRawIntBits(single(json)), 4);
                break;
            case AvroType.DOUBLE:
                real(Double.doubleToRawLongBits(twice(json)), 8);
                break;
            case AvroType.BYTES:
            case AvroType.FIXED:
                bytes(type, json);
                break;
            case AvroType.STRING:
                string(json);
                break;
            case AvroType.ENUM:
                symbol(type, json);
                break;
            case AvroType.ARRAY:
                array(type, json);
                break;
            case AvroType.MAP:
                map(type, json);
                break;
            case AvroType.RECORD:
                record(type, json);
                break;
            default:
                union(type, json);
        }
    }

    private void record(AvroType type, Object json) {
        if (!(json instanceof Map)) {
            throw needs("an object: the record " + type.name);
        }
        Map members = (Map) json;
        int used = 0;
        for (int index = 0; index < type.types.length; index++) {
            String name = type.names[index];
            try {
                if (members.containsKey(name)) {
                    value(type.types[index], members.get(name));
                    used++;
                } else if (type.defaults[index] != null) {
                    made.write(type.defaults[index], 0, type.defaults[index].length);
                } else {
                    throw new RegistryException("the field is missing, and has no default");
                }
            } catch (RegistryException error) {
                throw error.under("." + name);
            }
            if (made.size() > AvroToJson.BYTES_MAX) { // small objects with large defaults
                throw new RegistryException(
                    "its Avro has more than " + (AvroToJson.BYTES_MAX >> 20) + " MiB");
            }
        }
        if (used < members.size()) {
            throw new RegistryException(
                "the object has a field that the record " + type.name + " lacks");
        }
    }

    private void array(AvroType type, Object json) {
        if (!(json instanceof List)) {
            throw needs("an array");
        }
        List items = (List) json;
        if (!items.isEmpty()) {
            number(items.size());
        }
        for (int index = 0; index < items.size(); index++) {
            try {
                value(type.types[0], items.get(index));
            } catch (RegistryException error) {
                throw error.under("[" + index + "]");
            }
        }
        number(0);
    }

    private void map(AvroType type, Object json) {
        if (!(json instanceof Map)) {
            throw needs("an object: a map");
        }
        Map members = (Map) json;
        if (!members.isEmpty()) {
            number(members.size());
        }
        for (Object each : members.entrySet()) {
            Map.Entry member = (Map.Entry) each;
            string(member.getKey());
            try {
                value(type.types[0], member.getValue());
            } catch (RegistryException error) {
                throw error.under("[*]"); // the key is the record's
            }
        }
        number(0);
    }

    private void union(AvroType type, Object json) {
        if (json == null && type.absent >= 0) {
            number(type.absent);
            return;
        }
        if (type.only >= 0) {
            number(type.only);
            value(type.types[type.only], json);
            return;
        }
        if (json instanceof Map && ((Map) json).size() == 1) {
            Map.Entry member = (Map.Entry) ((Map) json).entrySet().iterator().next();
            for (int index = 0; index < type.types.length; index++) {
                if (type.types[index].name.equals(member.getKey())) {
                    number(index);
                    value(type.types[index], member.getValue());
                    return;
                }
            }
        }
        throw needs("an object with one field, named as a branch of the union");
    }

    private void bool(Object json) {
        boolean on = Boolean.TRUE.equals(json) || "true".equals(json);
        if (!on && !Boolean.FALSE.equals(json) && !"false".equals(json)) {
            throw needs("a boolean");
        }
        made.write(on ? 1 : 0);
    }

    private void whole(AvroType type, Object json) {
        long found;
        try {
            if (type.logical != AvroType.PLAIN && json instanceof String
                && digits((String) json) == null) {
                found = time(type, (String) json);
            } else {
                found = decimal(json).longValueExact();
            }
        } catch (ArithmeticException error) {
            throw needs("a whole number of at most 64 bits");
        } catch (DateTimeException error) {
            throw needs("a date or time, such as " + (type.logical == AvroType.DATE ? "2026-11-25"
                : type.logical == AvroType.TIME ? "16:33:45.123"
                : type.logical == AvroType.TIMESTAMP ? "2026-11-25T16:33:45.123Z"
                : "2026-11-25T16:33:45.123"));
        }
        if (type.kind == AvroType.INT && found != (int) found) {
            throw needs("a whole number of at most 32 bits");
        }
        number(found);
    }

    private static long time(AvroType type, String text) {
        if (type.logical == AvroType.DATE) {
            return LocalDate.parse(text).toEpochDay();
        }
        long seconds = 0;
        long nanos;
        if (type.logical == AvroType.TIME) {
            nanos = LocalTime.parse(text).toNanoOfDay();
            seconds = nanos / 1000000000L;
            nanos %= 1000000000L;
        } else {
            Instant found = type.logical == AvroType.TIMESTAMP ? Instant.parse(text)
                : LocalDateTime.parse(text).toInstant(ZoneOffset.UTC);
            seconds = found.getEpochSecond();
            nanos = found.getNano();
        }
        long perUnit = 1000000000L / type.unit;
        if (nanos % perUnit != 0) {
            throw new RegistryException("the time is finer than its type");
        }
        BigInteger whole = BigInteger.valueOf(seconds).multiply(BigInteger.valueOf(type.unit));
        return whole.add(BigInteger.valueOf(nanos / perUnit)).longValueExact();
    }

    private static float single(Object json) {
        String text = text(json);
        float found = Float.parseFloat(text);
        if (Float.isInfinite(found) && text.indexOf("Infinity") < 0) {
            throw needs("a number within the range of a float");
        }
        return found;
    }

    private static double twice(Object json) {
        String text = text(json);
        double found = Double.parseDouble(text);
        if (Double.isInfinite(found) && text.indexOf("Infinity") < 0) {
            throw needs("a number within the range of a double");
        }
        return found;
    }

    /** The text of a number, or of one that JSON does not have. */
    private static String text(Object json) {
        if ("NaN".equals(json) || "Infinity".equals(json) || "-Infinity".equals(json)) {
            return (String) json;
        }
        BigDecimal found = decimal(json);
        return json instanceof Digits ? ((Digits) json).text : found.toString();
    }

    private static BigDecimal decimal(Object json) {
        BigDecimal found = null;
        if (json instanceof Digits) {
            found = digits(((Digits) json).text);
        } else if (json instanceof String) {
            found = digits((String) json);
        }
        if (found == null) {
            throw needs("a number");
        }
        return found;
    }

    /** Null for what is no number. */
    private static BigDecimal digits(String text) {
        if (text.length() > NUMBER_CHARS_MAX) {
            return null;
        }
        try {
            return new BigDecimal(text);
        } catch (NumberFormatException error) {
            return null;
        }
    }

    private void bytes(AvroType type, Object json) {
        byte[] found;
        if (type.logical == AvroType.DECIMAL) {
            found = unscaled(type, decimal(json));
        } else if (!(json instanceof String)) {
            throw needs("a string");
        } else if (type.logical == AvroType.UUID) {
            found = uuid((String) json);
        } else {
            String text = (String) json;
            found = text.getBytes(StandardCharsets.ISO_8859_1);
            for (int index = 0; index < text.length(); index++) {
                if (text.charAt(index) > 0xff) {
                    throw needs("a string of bytes: characters up to \\u00ff");
                }
            }
        }
        if (type.kind == AvroType.BYTES) {
            number(found.length);
        } else if (found.length != type.size) {
            throw needs(type.size + " bytes");
        }
        made.write(found, 0, found.length);
    }

    private static byte[] unscaled(AvroType type, BigDecimal value) {
        // Of the exponent, before the digits are written out.
        long whole = (long) value.precision() - value.scale();
        if (value.signum() != 0 && whole > (long) type.precision - type.scale
            || value.scale() > NUMBER_CHARS_MAX) {
            throw needs("a decimal(" + type.precision + ", " + type.scale + ")");
        }
        byte[] found;
        try {
            found = (value.signum() == 0 ? BigDecimal.ZERO : value)
                .setScale(type.scale).unscaledValue().toByteArray();
        } catch (ArithmeticException error) {
            throw needs("a decimal with at most " + type.scale + " digits after the point");
        }
        if (type.kind != AvroType.FIXED || found.length >= type.size) {
            return found;
        }
        byte[] padded = new byte[type.size];
        if (found[0] < 0) {
            Arrays.fill(padded, (byte) 0xff);
        }
        System.arraycopy(found, 0, padded, type.size - found.length, found.length);
        return padded;
    }

    private static byte[] uuid(String text) {
        UUID found = null;
        try {
            found = text.length() == 36 ? UUID.fromString(text) : null;
        } catch (IllegalArgumentException error) {
            found = null;
        }
        if (found == null) {
            throw needs("a UUID");
        }
        return ByteBuffer.allocate(16).putLong(found.getMostSignificantBits())
            .putLong(found.getLeastSignificantBits()).array();
    }

    private void string(Object json) {
        if (!(json instanceof String)) {
            throw needs("a string");
        }
        try {
            ByteBuffer found =
                StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap((String) json));
            number(found.remaining());
            made.write(found.array(), 0, found.remaining());
        } catch (CharacterCodingException error) {
            throw new RegistryException("a string has half of a character");
        }
    }

    private void symbol(AvroType type, Object json) {
        for (int index = 0; index < type.names.length; index++) {
            if (type.names[index].equals(json)) {
                number(index);
                return;
            }
        }
        throw needs("a symbol of the enum " + type.name);
    }

    private static RegistryException needs(String what) {
        return new RegistryException("the schema needs " + what + " here");
    }

    // -- bytes -----------------------------------------------------------------------------------

    private void number(long value) {
        long rest = value << 1 ^ value >> 63;
        while ((rest & ~0x7fL) != 0) {
            made.write((int) (rest & 0x7f | 0x80));
            rest >>>= 7;
        }
        made.write((int) rest);
    }

    private void real(long bits, int count) {
        for (int index = 0; index < count; index++) {
            made.write((int) (bits >>> 8 * index));
        }
    }
}
