package sparkmirror;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;

import org.apache.spark.sql.api.java.UDF1;

/**
 * mask_json, hash_json and drop_json: edits one field of a JSON document, and copies all other bytes.
 *
 * The whole document is checked (RFC 8259, in UTF-8): what is no JSON raises an error, so that no
 * record passes with a field that was not found for that reason. A path that leads nowhere changes
 * nothing. Spark compiles this file with the compiler of its generated code, which knows neither
 * lambdas nor inferred types.
 */
public final class JsonFunction implements UDF1 {
    private static final int DEPTH_MAX = 1000;
    private static final byte[] HEX = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);

    private final String kind;
    private final byte[][] names;
    private final int[] indexes;
    private final byte[] mask;
    private final byte[] salt;

    /**
     * kind: mask, hash or drop. names: per step of the path a field's name in UTF-8, or null for
     * elements of an array. indexes: which element, -1 for all. mask: the new value as JSON.
     */
    public JsonFunction(String kind, byte[][] names, int[] indexes, byte[] mask, byte[] salt) {
        this.kind = kind;
        this.names = names;
        this.indexes = indexes;
        this.mask = mask;
        this.salt = salt;
    }

    public Object call(Object value) throws Exception {
        if (value == null) {
            return null;
        }
        return new Edit(this, (byte[]) value).edited();
    }

    /** An object or array that is being read. */
    private static final class Level {
        final Level outer;
        final int depth;
        final int start;
        final int step;
        final int close;
        int index = -1;
        int memberStart = 0;
        int memberEnd = 0;
        boolean leads = false; // whether the path goes on with this member
        boolean kept = false; // whether a member before this one stays

        Level(Level outer, int start, int step, boolean object) {
            this.outer = outer;
            this.depth = outer == null ? 1 : outer.depth + 1;
            this.start = start;
            this.step = step;
            this.close = object ? '}' : ']';
        }
    }

    /** One document on its way. */
    private static final class Edit {
        private final JsonFunction function;
        private final byte[] text;
        private final boolean drops;
        private int at = 0;
        private int copied = 0;
        private ByteArrayOutputStream made = null;

        Edit(JsonFunction function, byte[] text) {
            this.function = function;
            this.text = text;
            this.drops = function.kind.equals("drop");
        }

        /** A loop and no recursion: a deep document must not exhaust the stack of Spark's task. */
        byte[] edited() throws Exception {
            Level level = null;
            int step = 0; // how many steps of the path lead to what is read, -1 if they do not
            skipBlanks();
            do {
                int start = at;
                int first = next();
                if (first == '{' || first == '[') {
                    level = new Level(level, start, step, first == '{');
                    if (level.depth > DEPTH_MAX) {
                        throw wrong();
                    }
                    at++;
                    skipBlanks();
                    if (next() != level.close) {
                        step = begin(level);
                        continue;
                    }
                    at++;
                    level = level.outer;
                } else if (first == '"') {
                    string();
                } else if (first == '-' || first >= '0' && first <= '9') {
                    number();
                } else {
                    word(first == 't' ? "true" : first == 'f' ? "false" : "null");
                }
                ended(start, step);
                while (level != null && closes(level)) {
                    ended(level.start, level.step);
                    level = level.outer;
                }
                if (level != null) {
                    step = begin(level);
                }
            } while (level != null);
            skipBlanks();
            if (at < text.length) {
                throw wrong();
            }
            if (made == null) {
                return text;
            }
            made.write(text, copied, text.length - copied);
            return made.toByteArray();
        }

        /** A value has ended: edit it, if the path leads there. */
        private void ended(int start, int step) throws Exception {
            if (drops || step != function.names.length) {
                return;
            }
            int first = text[start];
            if (function.kind.equals("mask")) {
                replace(start, at, function.mask);
            } else if (first != 'n') {
                replace(start, at, hash(start, at, first == '"'));
            }
        }

        /** A member begins: its step. */
        private int begin(Level level) throws Exception {
            boolean onPath = level.step >= 0 && level.step < function.names.length;
            level.memberStart = at;
            level.index++;
            if (level.close == '}') {
                if (next() != '"') {
                    throw wrong();
                }
                string();
                level.leads =
                    onPath && isNamed(level.memberStart, function.names[level.step]);
                skipBlanks();
                if (next() != ':') {
                    throw wrong();
                }
                at++;
                skipBlanks();
            } else {
                level.leads = onPath && function.names[level.step] == null
                    && (function.indexes[level.step] < 0
                        || function.indexes[level.step] == level.index);
            }
            return level.leads ? level.step + 1 : -1;
        }

        /** A member has ended: leave it out with its comma, if so; whether it was the last one. */
        private boolean closes(Level level) {
            boolean dropped =
                drops && level.leads && level.step + 1 == function.names.length;
            if (dropped && level.kept) {
                replace(level.memberEnd, at, null);
            }
            level.memberEnd = at;
            skipBlanks();
            int after = next();
            if (after != ',' && after != level.close) {
                throw wrong();
            }
            at++;
            if (after == ',') {
                skipBlanks();
            }
            if (dropped && !level.kept) {
                replace(level.memberStart, after == ',' ? at : level.memberEnd, null);
            }
            level.kept |= !dropped;
            return after == level.close;
        }

        private void replace(int start, int end, byte[] by) {
            if (made == null) {
                made = new ByteArrayOutputStream(text.length + 64);
            }
            made.write(text, copied, start - copied);
            if (by != null) {
                made.write(by, 0, by.length);
            }
            copied = end;
        }

        private byte[] hash(int start, int end, boolean string) throws Exception {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            digest.update(function.salt);
            if (string) {
                digest.update(decoded(start, end).getBytes(StandardCharsets.UTF_8));
            } else {
                digest.update(text, start, end - start);
            }
            byte[] found = digest.digest();
            byte[] shown = new byte[2 + 2 * found.length];
            shown[0] = '"';
            for (int index = 0; index < found.length; index++) {
                shown[1 + 2 * index] = HEX[(found[index] >> 4) & 15];
                shown[2 + 2 * index] = HEX[found[index] & 15];
            }
            shown[shown.length - 1] = '"';
            return shown;
        }

        /** Whether the key that begins at start, and ends where we are, is the name. */
        private boolean isNamed(int start, byte[] name) {
            if (name == null) {
                return false;
            }
            boolean same = at - start - 2 == name.length;
            for (int index = start + 1; index < at - 1; index++) {
                if (text[index] == '\\') {
                    return Arrays.equals(name, decoded(start, at).getBytes(StandardCharsets.UTF_8));
                }
                same = same && text[index] == name[index - start - 1];
            }
            return same;
        }

        /** The text of a valid JSON string with its quotes. */
        private String decoded(int start, int end) {
            String raw = new String(text, start + 1, end - start - 2, StandardCharsets.UTF_8);
            if (raw.indexOf('\\') < 0) {
                return raw;
            }
            StringBuilder plain = new StringBuilder(raw.length());
            for (int index = 0; index < raw.length(); index++) {
                char one = raw.charAt(index);
                if (one != '\\') {
                    plain.append(one);
                    continue;
                }
                char escaped = raw.charAt(++index);
                if (escaped == 'u') {
                    plain.append((char) Integer.parseInt(raw.substring(index + 1, index + 5), 16));
                    index += 4;
                } else {
                    int known = "bfnrt".indexOf(escaped);
                    plain.append(known < 0 ? escaped : "\b\f\n\r\t".charAt(known));
                }
            }
            return plain.toString();
        }

        // -- the grammar -------------------------------------------------------------------------

        private void string() {
            at++;
            while (true) {
                int index = JsonText.plain(text, at, text.length);
                while (index < text.length && text[index] >= ' ' && text[index] != '"'
                    && text[index] != '\\') {
                    index++;
                }
                at = index;
                int one = next();
                if (one == '"') {
                    at++;
                    return;
                }
                if (one < 0) {
                    character();
                } else if (one == '\\') {
                    at++;
                    int escaped = next();
                    at++;
                    if (escaped == 'u') {
                        for (int count = 0; count < 4; count++, at++) {
                            if (Character.digit((char) next(), 16) < 0) {
                                throw wrong();
                            }
                        }
                    } else if ("\"\\/bfnrt".indexOf(escaped) < 0) {
                        throw wrong();
                    }
                } else {
                    throw wrong(); // a control character
                }
            }
        }

        /** Reads one character of two to four bytes. */
        private void character() {
            int first = next() & 0xff;
            int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
            at++;
            int point = first & (0x3f >> more);
            for (int count = 0; count < more; count++, at++) {
                int one = next();
                if ((one & 0xc0) != 0x80) {
                    throw wrong();
                }
                point = point << 6 | one & 0x3f;
            }
            int least = more == 1 ? 0x80 : more == 2 ? 0x800 : 0x10000;
            if (first < 0xc0 || first > 0xf4 || point < least || point > 0x10ffff
                || point >= 0xd800 && point <= 0xdfff) {
                throw wrong();
            }
        }

        private void number() {
            if (next() == '-') {
                at++;
            }
            if (next() == '0') {
                at++;
            } else {
                digits();
            }
            if (at < text.length && text[at] == '.') {
                at++;
                digits();
            }
            if (at < text.length && (text[at] == 'e' || text[at] == 'E')) {
                at++;
                if (next() == '+' || next() == '-') {
                    at++;
                }
                digits();
            }
        }

        private void digits() {
            int start = at;
            while (at < text.length && text[at] >= '0' && text[at] <= '9') {
                at++;
            }
            if (at == start) {
                throw wrong();
            }
        }

        private void word(String expected) {
            for (int index = 0; index < expected.length(); index++, at++) {
                if (next() != expected.charAt(index)) {
                    throw wrong();
                }
            }
        }

        private void skipBlanks() {
            while (at < text.length
                && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t')) {
                at++;
            }
        }

        private int next() {
            if (at >= text.length) {
                throw wrong();
            }
            return text[at];
        }

        /** The text itself does not belong into an error: it may be what is to be masked. */
        private IllegalArgumentException wrong() {
            return new IllegalArgumentException("the value is no JSON: at byte " + at);
        }
    }
}
