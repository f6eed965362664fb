package sparkmirror;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.function.Function;

import org.apache.spark.sql.catalyst.expressions.json.GetJsonObjectEvaluator;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * get_json_object for a path of plain names, like '$.region' or '$.user.id': the same results as
 * Spark's own, with less work.
 *
 * Spark decodes the document to characters and makes an object of each name. Here its bytes are read
 * once. What is found is the result only if there is one way to read it: the document is strict JSON
 * (RFC 8259), each name of the path is there once, and the value is a text without escapes, a whole
 * number, true or false. All else is UNSURE, and Spark's own code evaluates the document: what is no
 * JSON, Jackson's extensions, null, floating numbers, objects, arrays, names with escapes.
 */
public final class JsonField implements Function, Serializable {
    private static final Object UNSURE = new String("unsure");
    /** Far below Jackson's own limits: it refuses deeper documents, and longer names and numbers. */
    private static final int DEPTH_MAX = 60;
    private static final int NAME_MAX = 1000;
    private static final int DIGITS_MAX = 18;
    private static final int BYTES_MAX = 1 << 20;

    private final String path;
    private final byte[][] names;
    private transient ThreadLocal evaluators;

    /** path: "$" and names of letters, digits, "_" and "-", each with a dot before it. */
    public JsonField(String path) {
        this.path = path;
        String[] found = path.substring(2).split("\\.");
        this.names = new byte[found.length][];
        for (int index = 0; index < found.length; index++) {
            names[index] = found[index].getBytes(StandardCharsets.US_ASCII);
        }
    }

    public Object apply(Object given) {
        UTF8String document = (UTF8String) given;
        Object found = known(document);
        if (found == UNSURE) {
            return evaluated(document);
        }
        return found;
    }

    /** The field's value, null if the document has none, or UNSURE. */
    public Object known(UTF8String document) {
        Object base = document.getBaseObject();
        if (!(base instanceof byte[]) || document.numBytes() > BYTES_MAX) {
            return UNSURE;
        }
        int start = (int) (document.getBaseOffset() - Platform.BYTE_ARRAY_OFFSET);
        return find((byte[]) base, start, start + document.numBytes());
    }

    /** What Spark's own function gives. */
    private Object evaluated(UTF8String document) {
        if (evaluators == null) {
            evaluators = new ThreadLocal(); // of two, one is lost: a thread makes another evaluator
        }
        ThreadLocal mine = evaluators;
        GetJsonObjectEvaluator evaluator = (GetJsonObjectEvaluator) mine.get();
        if (evaluator == null) {
            evaluator = new GetJsonObjectEvaluator(UTF8String.fromString(path));
            mine.set(evaluator);
        }
        evaluator.setJson(document);
        return evaluator.evaluate();
    }

    private Object find(byte[] text, int from, int end) {
        long objects = 0; // a bit for each level, the innermost in front: 1 for an object
        int depth = 0;
        int led = 0; // how many levels from the outside on are those of the path
        long seen = 0; // a bit for each name of the path
        Object found = null;
        int at = blanks(text, from, end);
        if (at >= end || text[at] != '{' || names.length > DEPTH_MAX) {
            return UNSURE;
        }
        boolean leads = true; // whether the path goes through the value that begins here
        while (true) {
            // -- a value
            if (at >= end) {
                return UNSURE;
            }
            int first = text[at];
            boolean wanted = leads && led == names.length;
            boolean opens = false;
            if (first == '"') {
                int close = string(text, at + 1, end);
                if (close < 0) {
                    return UNSURE;
                }
                if (wanted) {
                    for (int index = at + 1; index < close; index++) {
                        if (text[index] < 0 || text[index] == '\\') {
                            return UNSURE;
                        }
                    }
                    found = UTF8String.fromBytes(text, at + 1, close - at - 1);
                }
                at = close + 1;
            } else if (first == '{' || first == '[') {
                if (wanted || depth == DEPTH_MAX || leads && first == '[') {
                    return UNSURE;
                }
                depth++;
                objects = objects << 1 | (first == '{' ? 1 : 0);
                if (leads) {
                    led++;
                }
                at = blanks(text, at + 1, end);
                if (at >= end) {
                    return UNSURE;
                }
                opens = text[at] != (first == '{' ? '}' : ']');
            } else {
                int stop = first == 't' ? word(text, at, end, "true")
                    : first == 'f' ? word(text, at, end, "false")
                    : first == 'n' ? word(text, at, end, "null") : number(text, at, end);
                if (stop < 0) {
                    return UNSURE;
                }
                if (wanted) {
                    if (first == 'n' || !isWhole(text, at, stop) && first != 't' && first != 'f') {
                        return UNSURE;
                    }
                    found = UTF8String.fromBytes(text, at, stop - at);
                }
                if (leads && !wanted) {
                    return UNSURE; // the path goes on, and this is no object
                }
                at = stop;
            }
            if (first == '"' && leads && !wanted) {
                return UNSURE;
            }
            // -- what follows it
            while (!opens) {
                at = blanks(text, at, end);
                if (depth == 0) {
                    return at == end ? found : UNSURE;
                }
                if (at >= end) {
                    return UNSURE;
                }
                boolean object = (objects & 1) == 1;
                int after = text[at];
                at++;
                if (after == ',') {
                    at = blanks(text, at, end);
                    opens = true;
                } else if (after == (object ? '}' : ']')) {
                    depth--;
                    objects >>>= 1;
                    led = Math.min(led, depth);
                } else {
                    return UNSURE;
                }
            }
            // -- the name of the next one
            leads = false;
            if ((objects & 1) == 1) {
                if (at >= end || text[at] != '"') {
                    return UNSURE;
                }
                int close = string(text, at + 1, end);
                if (close < 0 || close - at > NAME_MAX) {
                    return UNSURE;
                }
                if (led == depth) {
                    byte[] name = names[depth - 1];
                    leads = close - at - 1 == name.length;
                    for (int index = at + 1; index < close; index++) {
                        if (text[index] == '\\') {
                            return UNSURE; // it may be the name all the same
                        }
                        leads = leads && text[index] == name[index - at - 1];
                    }
                    if (leads) {
                        if ((seen >>> depth & 1) == 1) {
                            return UNSURE;
                        }
                        seen |= 1L << depth;
                    }
                }
                at = blanks(text, close + 1, end);
                if (at >= end || text[at] != ':') {
                    return UNSURE;
                }
                at = blanks(text, at + 1, end);
            }
        }
    }

    /** Where the quote is that ends a string; -1: it has none, or it is no strict JSON. */
    private static int string(byte[] text, int from, int end) {
        int at = from;
        while (true) {
            at = JsonText.plain(text, at, end);
            // Bytes below 0 are parts of other characters. Those that are no UTF-8 are read by Java
            // as a character that stands for them, and never take a byte of ASCII with them.
            while (at < end && text[at] != '"' && text[at] != '\\'
                && (text[at] >= ' ' || text[at] < 0)) {
                at++;
            }
            if (at >= end) {
                return -1;
            }
            if (text[at] == '"') {
                return at;
            }
            if (text[at] != '\\' || at + 1 >= end) {
                return -1;
            }
            int escaped = text[at + 1];
            at += 2;
            if (escaped == 'u') {
                for (int count = 0; count < 4; count++, at++) {
                    if (at >= end || Character.digit((char) text[at], 16) < 0) {
                        return -1;
                    }
                }
            } else if ("\"\\/bfnrt".indexOf(escaped) < 0) {
                return -1;
            }
        }
    }

    /** Where a number ends; -1: it is none, or a very long one. */
    private static int number(byte[] text, int from, int end) {
        int at = from < end && text[from] == '-' ? from + 1 : from;
        int digits = digits(text, at, end);
        if (digits == at || text[at] == '0' && digits > at + 1) {
            return -1;
        }
        at = digits;
        if (at < end && text[at] == '.') {
            digits = digits(text, at + 1, end);
            if (digits == at + 1) {
                return -1;
            }
            at = digits;
        }
        if (at < end && (text[at] == 'e' || text[at] == 'E')) {
            at++;
            if (at < end && (text[at] == '+' || text[at] == '-')) {
                at++;
            }
            digits = digits(text, at, end);
            if (digits == at) {
                return -1;
            }
            at = digits;
        }
        return at - from > NAME_MAX / 2 ? -1 : at;
    }

    private static int digits(byte[] text, int from, int end) {
        int at = from;
        while (at < end && text[at] >= '0' && text[at] <= '9') {
            at++;
        }
        return at;
    }

    /** Whether a number has no fraction, no exponent, and is written as Jackson would write it. */
    private static boolean isWhole(byte[] text, int from, int stop) {
        int first = text[from] == '-' ? from + 1 : from;
        return digits(text, first, stop) == stop && stop - first <= DIGITS_MAX
            && (first == from || text[first] != '0');
    }

    private static int word(byte[] text, int from, int end, String expected) {
        if (end - from < expected.length()) {
            return -1;
        }
        for (int index = 0; index < expected.length(); index++) {
            if (text[from + index] != expected.charAt(index)) {
                return -1;
            }
        }
        return from + expected.length();
    }

    private static int blanks(byte[] text, int from, int end) {
        int at = from;
        while (at < end && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r'
            || text[at] == '\t')) {
            at++;
        }
        return at;
    }

    /** For Spark's plans. */
    public String toString() {
        return "get_json_object[" + path + "]";
    }
}
