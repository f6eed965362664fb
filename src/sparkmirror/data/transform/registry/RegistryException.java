package sparkmirror;

/**
 * Why decode_registry or encode_registry fails on a record, or why the registry cannot be used.
 *
 * The message has nothing of a record: names of fields are those of the schema. So it may be shown
 * where records must not be.
 */
public final class RegistryException extends IllegalArgumentException {
    public static final String RECORD = "record";
    public static final String MISSING = "missing";
    public static final String LOGIN = "login";
    public static final String TLS = "tls";
    public static final String UNAVAILABLE = "unavailable";

    private static final int PATH_CHARS_MAX = 200;

    private final String kind;
    private final String what;
    private String path = "";
    private String schema = "";

    /** kind: one of the constants; it decides about the remedy. */
    public RegistryException(String kind, String what) {
        this.kind = kind;
        this.what = what;
    }

    /** What is wrong with a record. */
    public RegistryException(String what) {
        this(RECORD, what);
    }

    public String kind() {
        return kind;
    }

    /** A new one with the same words: an exception belongs to one thread. */
    public RegistryException again() {
        return new RegistryException(kind, what);
    }

    /** The fault is below that step of the document: ".name" of a field, "[*]" of others. */
    public RegistryException under(String step) {
        if (path.length() < PATH_CHARS_MAX) {
            path = step + path;
        } else if (!path.startsWith("...")) {
            path = "..." + path;
        }
        return this;
    }

    /** The fault is in a value with the schema of that id. */
    public RegistryException of(int id) {
        schema = "schema " + id + ": ";
        return this;
    }

    public String getMessage() {
        return schema + (path.isEmpty() ? what : "at $" + path + ": " + what);
    }

    /** Many records may fail, and where in the code says nothing about them. */
    public synchronized Throwable fillInStackTrace() {
        return this;
    }
}
