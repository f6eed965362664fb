package sparkmirror;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Arrays;
import java.util.UUID;

/**
 * Writes one Avro record as JSON.
 *
 * Every length is compared with the bytes that are there before anything is made of it, and what a
 * block announces costs nothing: so neither a broken nor a hostile record takes more memory than
 * BYTES_MAX, or more stack than DEPTH_MAX levels.
 */
public final class AvroToJson {
    // The stack of Spark's tasks has room for twice as many.
    public static final int DEPTH_MAX = 300;
    public static final int BYTES_MAX = 64 << 20;

    private static final long DAY_S = 24L * 60 * 60;
    private static final byte[] HEX = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);

    private final byte[] data;
    private int at;
    private byte[] made;
    private int size = 0;

    private AvroToJson(byte[] data, int start) {
        this.data = data;
        this.at = start;
        this.made = new byte[(int) Math.min(BYTES_MAX, Math.max(64L, 2L * (data.length - start)))];
    }

    /** The record that begins at start and ends with the data. */
    public static String text(AvroType type, byte[] data, int start) {
        AvroToJson one = new AvroToJson(data, start);
        one.value(type, 0);
        if (one.at < data.length) {
            throw new RegistryException((data.length - one.at) + " bytes follow the record");
        }
        try {
            // Strings were copied as they are; quotes between them show where one is cut off.
            return StandardCharsets.UTF_8.newDecoder()
                .onMalformedInput(CodingErrorAction.REPORT)
                .decode(ByteBuffer.wrap(one.made, 0, one.size)).toString();
        } catch (CharacterCodingException error) {
            throw new RegistryException("a string of the record is no UTF-8");
        }
    }

    private void value(AvroType type, int depth) {
        if (depth > DEPTH_MAX) {
            throw new RegistryException("it has more than " + DEPTH_MAX + " levels");
        }
        switch (type.kind) {
            case AvroType.NULL:
                ascii("null");
                break;
            case AvroType.BOOLEAN:
                ascii(bool() ? "true" : "false");
                break;
            case AvroType.INT:
            case AvroType.LONG:
                whole(type);
                break;
            case AvroType.FLOAT:
                take(4);
                real(Float.toString(Float.intBitsToFloat((int) little(4))));
                break;
            case AvroType.DOUBLE:
                take(8);
                real(Double.toString(Double.longBitsToDouble(little(8))));
                break;
            case AvroType.BYTES:
                bytes(type, take(length()));
                break;
            case AvroType.FIXED:
                bytes(type, take(type.size));
                break;
            case AvroType.STRING:
                string(take(length()));
                break;
            case AvroType.ENUM:
                copy(type.labels[index(type.labels.length)]);
                break;
            case AvroType.ARRAY:
            case AvroType.MAP:
                blocks(type, depth);
                break;
            case AvroType.RECORD:
                record(type, depth);
                break;
            default:
                union(type, depth);
        }
    }

    private void record(AvroType type, int depth) {
        put('{');
        for (int index = 0; index < type.types.length; index++) {
            if (index > 0) {
                put(',');
            }
            copy(type.labels[index]);
            try {
                value(type.types[index], depth + 1);
            } catch (RegistryException error) {
                throw error.under("." + type.names[index]);
            }
        }
        put('}');
    }

    /** An array, or a map, whose elements have a name in front. */
    private void blocks(AvroType type, int depth) {
        boolean array = type.kind == AvroType.ARRAY;
        boolean first = true;
        put(array ? '[' : '{');
        try {
            for (long count = number(); count != 0; count = number()) {
                if (count < 0) {
                    number(); // the block's bytes, for those who skip it
                    count = -count;
                }
                if (count < 0) {
                    throw new RegistryException("a block has an impossible length");
                }
                for (; count > 0; count--) {
                    if (!first) {
                        put(',');
                    }
                    first = false;
                    if (!array) {
                        string(take(length()));
                        put(':');
                    }
                    value(type.types[0], depth + 1);
                }
            }
        } catch (RegistryException error) {
            throw error.under("[*]");
        }
        put(array ? ']' : '}');
    }

    /** The only branch beside null stands for itself; one of several has its name, as in Avro. */
    private void union(AvroType type, int depth) {
        int branch = index(type.types.length);
        if (branch == type.absent) {
            ascii("null");
        } else if (branch == type.only) {
            value(type.types[branch], depth);
        } else {
            put('{');
            copy(AvroType.quoted(type.types[branch].name).getBytes(StandardCharsets.UTF_8));
            put(':');
            value(type.types[branch], depth + 1);
            put('}');
        }
    }

    private void whole(AvroType type) {
        long value = number();
        if (type.kind == AvroType.INT && value != (int) value) {
            throw new RegistryException("it is no int: it has more than 32 bits");
        }
        if (type.logical == AvroType.DATE) {
            quoted(LocalDate.ofEpochDay(value).toString());
            return;
        }
        if (type.unit == 0L) {
            ascii(Long.toString(value));
            return;
        }
        long seconds = Math.floorDiv(value, type.unit);
        long nanos = Math.floorMod(value, type.unit) * (1000000000L / type.unit);
        if (type.logical == AvroType.TIMESTAMP) {
            quoted(Instant.ofEpochSecond(seconds, nanos).toString());
        } else if (type.logical == AvroType.LOCAL_TIMESTAMP) {
            quoted(DateTimeFormatter.ISO_LOCAL_DATE_TIME.format(
                LocalDateTime.ofEpochSecond(seconds, (int) nanos, ZoneOffset.UTC)));
        } else if (type.logical == AvroType.TIME && seconds >= 0 && seconds < DAY_S) {
            quoted(DateTimeFormatter.ISO_LOCAL_TIME.format(
                LocalTime.ofNanoOfDay(seconds * 1000000000L + nanos)));
        } else {
            ascii(Long.toString(value)); // no time of a day: kept as it is
        }
    }

    /** JSON has no NaN and no infinity. */
    private void real(String text) {
        char last = text.charAt(text.length() - 1);
        if (last == 'N' || last == 'y') {
            quoted(text);
        } else {
            ascii(text);
        }
    }

    /** The bytes from start to where we are. */
    private void bytes(AvroType type, int start) {
        if (type.logical == AvroType.DECIMAL) {
            decimal(type, start);
        } else if (type.logical == AvroType.UUID) {
            ByteBuffer both = ByteBuffer.wrap(data, start, 16);
            quoted(new UUID(both.getLong(), both.getLong()).toString());
        } else {
            put('"');
            for (int index = start; index < at; index++) {
                int one = data[index] & 0xff;
                if (one < 0x80) {
                    character(one);
                } else {
                    put(0xc0 | one >> 6);
                    put(0x80 | one & 0x3f);
                }
            }
            put('"');
        }
    }

    private void decimal(AvroType type, int start) {
        if (at == start) {
            throw new RegistryException("a decimal has no bytes");
        }
        BigInteger digits = new BigInteger(Arrays.copyOfRange(data, start, at));
        // Digits take time that grows faster than their number.
        if (digits.bitLength() > 4L * type.precision) {
            throw new RegistryException("a decimal has more digits than its precision allows");
        }
        ascii(new BigDecimal(digits, type.scale).toPlainString());
    }

    /** The text from start to where we are. Whether it is UTF-8 is seen at the end. */
    private void string(int start) {
        put('"');
        int from = start;
        for (int index = start; index < at; index++) {
            int one = data[index];
            if (one >= 0 && (one < ' ' || one == '"' || one == '\\')) {
                copy(data, from, index);
                character(one);
                from = index + 1;
            }
        }
        copy(data, from, at);
        put('"');
    }

    /** One character of ASCII within a string. */
    private void character(int one) {
        if (one == '"' || one == '\\') {
            put('\\');
            put(one);
        } else if (one < ' ') {
            ascii("\\u00");
            put(HEX[one >> 4]);
            put(HEX[one & 15]);
        } else {
            put(one);
        }
    }

    // -- what is read ----------------------------------------------------------------------------

    /** Where the next count bytes begin. They are there. */
    private int take(int count) {
        if (count < 0 || count > data.length - at) {
            throw cutOff();
        }
        at += count;
        return at - count;
    }

    private int length() {
        long found = number();
        if (found < 0 || found > data.length - at) {
            throw cutOff();
        }
        return (int) found;
    }

    private int index(int count) {
        long found = number();
        if (found < 0 || found >= count) {
            throw new RegistryException("it has no such branch or symbol");
        }
        return (int) found;
    }

    private boolean bool() {
        int found = data[take(1)];
        if (found != 0 && found != 1) {
            throw new RegistryException("it is no boolean");
        }
        return found == 1;
    }

    /** A number of variable length, of up to 64 bits. */
    private long number() {
        long found = 0;
        for (int shift = 0; shift < 70; shift += 7) {
            if (at >= data.length) {
                throw cutOff();
            }
            int one = data[at++];
            if (shift == 63 && (one & 0x7e) != 0) {
                break;
            }
            found |= (one & 0x7fL) << shift;
            if (one >= 0) {
                return found >>> 1 ^ -(found & 1);
            }
        }
        throw new RegistryException("a number has more than 64 bits");
    }

    /** The last count bytes as a number. */
    private long little(int count) {
        long found = 0;
        for (int index = 1; index <= count; index++) {
            found = found << 8 | data[at - index] & 0xff;
        }
        return found;
    }

    private RegistryException cutOff() {
        return new RegistryException("the value ends within it");
    }

    // -- what is written -------------------------------------------------------------------------

    private void quoted(String text) {
        put('"');
        ascii(text);
        put('"');
    }

    private void ascii(String text) {
        room(text.length());
        for (int index = 0; index < text.length(); index++) {
            made[size++] = (byte) text.charAt(index);
        }
    }

    private void copy(byte[] from) {
        copy(from, 0, from.length);
    }

    private void copy(byte[] from, int start, int end) {
        room(end - start);
        System.arraycopy(from, start, made, size, end - start);
        size += end - start;
    }

    private void put(int one) {
        room(1);
        made[size++] = (byte) one;
    }

    private void room(int more) {
        if (made.length - size >= more) {
            return;
        }
        if ((long) size + more > BYTES_MAX) {
            throw new RegistryException("its JSON has more than " + (BYTES_MAX >> 20) + " MiB");
        }
        long wanted = Math.max(2L * made.length, (long) size + more);
        made = Arrays.copyOf(made, (int) Math.min(BYTES_MAX, wanted));
    }
}
