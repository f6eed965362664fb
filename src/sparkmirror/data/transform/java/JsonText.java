package sparkmirror;

import java.nio.ByteOrder;

import org.apache.spark.unsafe.Platform;

/** Reads the strings of JSON documents eight bytes at once: most bytes of most documents are there. */
public final class JsonText {
    private static final boolean LITTLE = ByteOrder.nativeOrder() == ByteOrder.LITTLE_ENDIAN;
    private static final long ONES = 0x0101010101010101L;
    private static final long HIGH = 0x8080808080808080L;

    private JsonText() {
    }

    /**
     * The first quote, backslash, control character or byte that is not ASCII from at on. It may also
     * be a place before it, from which the caller goes on byte by byte.
     */
    public static int plain(byte[] text, int from, int end) {
        int at = from;
        while (LITTLE && at + 8 <= end) {
            long word = Platform.getLong(text, (long) Platform.BYTE_ARRAY_OFFSET + at);
            long quote = word ^ 0x2222222222222222L;
            long slash = word ^ 0x5c5c5c5c5c5c5c5cL;
            // The lowest bit that is set is right; those above it need not be.
            long marks = ((quote - ONES) & ~quote | (slash - ONES) & ~slash
                | (word - 0x2020202020202020L) & ~word | word) & HIGH;
            if (marks != 0) {
                return at + (Long.numberOfTrailingZeros(marks) >>> 3);
            }
            at += 8;
        }
        return at;
    }
}
