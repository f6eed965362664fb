package sparkmirror;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.sparkproject.connect.gson.JsonArray;
import org.sparkproject.connect.gson.JsonElement;
import org.sparkproject.connect.gson.JsonObject;
import org.sparkproject.connect.gson.JsonParser;
import org.sparkproject.connect.protobuf.AnyProto;
import org.sparkproject.connect.protobuf.ApiProto;
import org.sparkproject.connect.protobuf.ByteString;
import org.sparkproject.connect.protobuf.CodedInputStream;
import org.sparkproject.connect.protobuf.DescriptorProtos;
import org.sparkproject.connect.protobuf.Descriptors;
import org.sparkproject.connect.protobuf.DurationProto;
import org.sparkproject.connect.protobuf.DynamicMessage;
import org.sparkproject.connect.protobuf.EmptyProto;
import org.sparkproject.connect.protobuf.FieldMaskProto;
import org.sparkproject.connect.protobuf.InvalidProtocolBufferException;
import org.sparkproject.connect.protobuf.Message;
import org.sparkproject.connect.protobuf.SourceContextProto;
import org.sparkproject.connect.protobuf.StructProto;
import org.sparkproject.connect.protobuf.TimestampProto;
import org.sparkproject.connect.protobuf.TypeProto;
import org.sparkproject.connect.protobuf.UninitializedMessageException;
import org.sparkproject.connect.protobuf.WrappersProto;
import org.sparkproject.connect.protobuf.util.JsonFormat;

/**
 * A Protobuf schema: reads and writes its messages, with the library that Spark Connect brings.
 *
 * Which message of the file a value has is said by numbers in front of it. What would be lost in
 * silence is an error: fields that the schema lacks, text that is no UTF-8, a JSON field that is
 * there twice.
 */
public final class ProtoSchema {
    /** Levels of messages, in records and in JSON. */
    private static final int DEPTH_MAX = 100;
    /** Messages in a record: the library makes 100 bytes and more of one that has two. */
    private static final int MESSAGES_MAX = 500000;
    private static final Map KNOWN = new HashMap();

    static {
        Descriptors.FileDescriptor[] files = new Descriptors.FileDescriptor[] {
            AnyProto.getDescriptor(), ApiProto.getDescriptor(), DurationProto.getDescriptor(),
            EmptyProto.getDescriptor(), FieldMaskProto.getDescriptor(),
            SourceContextProto.getDescriptor(), StructProto.getDescriptor(),
            TimestampProto.getDescriptor(), TypeProto.getDescriptor(),
            WrappersProto.getDescriptor(), DescriptorProtos.getDescriptor(),
        };
        for (int index = 0; index < files.length; index++) {
            KNOWN.put(files[index].getName(), files[index]);
        }
        // Registries know these without a reference. The first one only has options.
        KNOWN.put("confluent/meta.proto", known("confluent/meta.proto", ""));
        KNOWN.put("confluent/type/decimal.proto", known("confluent/type/decimal.proto",
            "syntax = 'proto3'; package confluent.type; message Decimal "
            + "{ bytes value = 1; uint32 precision = 2; int32 scale = 3; }"));
        // What Kafka Connect and Flink write for dates and times of day.
        KNOWN.put("google/type/date.proto", known("google/type/date.proto",
            "syntax = 'proto3'; package google.type; message Date "
            + "{ int32 year = 1; int32 month = 2; int32 day = 3; }"));
        KNOWN.put("google/type/timeofday.proto", known("google/type/timeofday.proto",
            "syntax = 'proto3'; package google.type; message TimeOfDay "
            + "{ int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }"));
    }

    private final Descriptors.FileDescriptor file;
    private final JsonFormat.TypeRegistry types;
    private final JsonFormat.Printer printer;
    private final JsonFormat.Parser parser;
    /** Whether it has messages of proto2. */
    private final boolean loose;

    private ProtoSchema(Descriptors.FileDescriptor file) {
        this.file = file;
        JsonFormat.TypeRegistry.Builder built = JsonFormat.TypeRegistry.newBuilder();
        for (int index = 0; index < file.getMessageTypes().size(); index++) {
            built.add((Descriptors.Descriptor) file.getMessageTypes().get(index));
        }
        this.types = built.build();
        this.printer = JsonFormat.printer().usingTypeRegistry(types)
            .alwaysPrintFieldsWithNoPresence().omittingInsignificantWhitespace();
        this.parser = JsonFormat.parser().usingTypeRegistry(types);
        this.loose = isLoose(file, new HashSet());
    }

    /** references: the texts of other files, by the names under which they are imported. */
    public static ProtoSchema of(String text, Map references) {
        String name = "schema.proto";
        while (references.containsKey(name)) { // its own name: an import means the other file
            name = "_" + name;
        }
        return new ProtoSchema(built(name, text, references, new HashMap(), new HashSet()));
    }

    /** seen: names of files. Without it, there are 2^n ways through n files. */
    private static boolean isLoose(Descriptors.FileDescriptor one, Set seen) {
        if (!seen.add(one.getName())) {
            return false;
        }
        if (!one.toProto().getSyntax().equals("proto3")) {
            return true;
        }
        for (int index = 0; index < one.getDependencies().size(); index++) {
            if (isLoose((Descriptors.FileDescriptor) one.getDependencies().get(index), seen)) {
                return true;
            }
        }
        return false;
    }

    private static Descriptors.FileDescriptor known(String name, String text) {
        return built(name, text, new HashMap(), new HashMap(), new HashSet());
    }

    private static Descriptors.FileDescriptor built(
        String name, String text, Map references, Map done, Set begun) {
        if (!begun.add(name)) {
            throw new RegistryException("its imports lead back to " + name);
        }
        DescriptorProtos.FileDescriptorProto parsed = parsed(name, text);
        Descriptors.FileDescriptor[] imported =
            new Descriptors.FileDescriptor[parsed.getDependencyCount()];
        for (int index = 0; index < imported.length; index++) {
            String other = parsed.getDependency(index);
            Object found = KNOWN.get(other);
            if (found == null) {
                found = done.get(other);
            }
            if (found == null) {
                if (!references.containsKey(other)) {
                    throw new RegistryException(
                        "the schema imports " + other + ", but has no reference of that name");
                }
                found = built(other, (String) references.get(other), references, done, begun);
            }
            imported[index] = (Descriptors.FileDescriptor) found;
        }
        try {
            Descriptors.FileDescriptor made =
                Descriptors.FileDescriptor.buildFrom(parsed, imported);
            done.put(name, made);
            return made;
        } catch (Descriptors.DescriptorValidationException error) {
            throw new RegistryException("the schema is no .proto file: " + error.getMessage());
        }
    }

    /** Some clients register a descriptor in base64, which no .proto file looks like. */
    private static DescriptorProtos.FileDescriptorProto parsed(String name, String text) {
        if (text.trim().isEmpty() || !text.matches("[A-Za-z0-9+/=\\s]*")) {
            return ProtoText.file(name, text);
        }
        try {
            DescriptorProtos.FileDescriptorProto found =
                DescriptorProtos.FileDescriptorProto.parseFrom(Base64.getMimeDecoder().decode(text));
            return (DescriptorProtos.FileDescriptorProto) found.toBuilder().setName(name).build();
        } catch (InvalidProtocolBufferException error) {
            throw new RegistryException("the schema is no .proto file, and no descriptor in base64");
        }
    }

    // -- which message ---------------------------------------------------------------------------

    /** The numbers of a message, and where they end in the data. */
    private static final class Place {
        final int[] numbers;
        final int end;

        Place(int[] numbers, int end) {
            this.numbers = numbers;
            this.end = end;
        }
    }

    private static Place place(byte[] data, int start) {
        int[] at = new int[] {start};
        int count = number(data, at);
        if (count < 0 || count > DEPTH_MAX) {
            throw new RegistryException("it does not begin with the numbers of a message");
        }
        int[] numbers = new int[Math.max(1, count)];
        for (int index = 0; index < count; index++) {
            numbers[index] = number(data, at);
        }
        return new Place(numbers, at[0]);
    }

    private static int number(byte[] data, int[] at) {
        int found = 0;
        for (int shift = 0; shift < 35; shift += 7) {
            if (at[0] >= data.length) {
                throw new RegistryException("it ends within the numbers of its message");
            }
            int one = data[at[0]++];
            found |= (one & 0x7f) << shift;
            if (one >= 0) {
                return found >>> 1 ^ -(found & 1);
            }
        }
        throw new RegistryException("it does not begin with the numbers of a message");
    }

    private Descriptors.Descriptor message(int[] numbers) {
        List these = file.getMessageTypes();
        Descriptors.Descriptor found = null;
        for (int index = 0; index < numbers.length; index++) {
            if (numbers[index] < 0 || numbers[index] >= these.size()) {
                throw new RegistryException("the schema has no message with its numbers");
            }
            found = (Descriptors.Descriptor) these.get(numbers[index]);
            these = nested(found);
        }
        return found;
    }

    /** Those that have numbers: of maps there are entries as well, which no text names. */
    private static List nested(Descriptors.Descriptor message) {
        List found = new ArrayList();
        for (int index = 0; index < message.getNestedTypes().size(); index++) {
            Descriptors.Descriptor one =
                (Descriptors.Descriptor) message.getNestedTypes().get(index);
            if (!one.getOptions().getMapEntry()) {
                found.add(one);
            }
        }
        return found;
    }

    /** The message of that name, with or without the package; null: the first one. */
    public int[] numbers(String name) {
        List path = new ArrayList();
        if (name == null) {
            path.add(Integer.valueOf(0));
            message(new int[] {0});
        } else if (!find(name, file.getMessageTypes(), path)) {
            throw new RegistryException("the schema has no message '" + name + "'");
        }
        int[] found = new int[path.size()];
        for (int index = 0; index < found.length; index++) {
            found[index] = ((Integer) path.get(index)).intValue();
        }
        return found;
    }

    private boolean find(String name, List these, List path) {
        for (int index = 0; index < these.size(); index++) {
            Descriptors.Descriptor one = (Descriptors.Descriptor) these.get(index);
            path.add(Integer.valueOf(index));
            String full = one.getFullName();
            if (full.equals(name) || full.equals(file.getPackage() + "." + name)
                || find(name, nested(one), path)) {
                return true;
            }
            path.remove(path.size() - 1);
        }
        return false;
    }

    /** The numbers of the message that a value has. */
    public static int[] numbersOf(byte[] data, int start) {
        return place(data, start).numbers;
    }

    // -- values ----------------------------------------------------------------------------------

    /** The value, whose numbers begin at start, as JSON. */
    public String text(byte[] data, int start) {
        Place place = place(data, start);
        Descriptors.Descriptor type = message(place.numbers);
        try {
            Message found = parsed(type, data, place.end);
            checkKnown(found, 0);
            checkText(found, data, place.end);
            Bounded made = new Bounded();
            printer.appendTo(found, made);
            return made.text.toString();
        } catch (InvalidProtocolBufferException error) {
            throw new RegistryException("it is no message " + type.getFullName()
                + ": it is cut off or broken, lacks a required field, has a text that is no UTF-8, "
                + "more than " + DEPTH_MAX + " levels, or an Any of a type that the schema lacks");
        } catch (IOException error) {
            throw new RegistryException("it is no message " + type.getFullName());
        } catch (RegistryException error) {
            throw error;
        } catch (IllegalArgumentException error) {
            throw new RegistryException("it has a time or a duration that JSON cannot have");
        }
    }

    private static Message parsed(Descriptors.Descriptor type, byte[] data, int start)
        throws IOException {
        count(CodedInputStream.newInstance(data, start, data.length - start), type, 0,
            new int[] {MESSAGES_MAX, DEPTH_MAX});
        CodedInputStream input = CodedInputStream.newInstance(data, start, data.length - start);
        input.setRecursionLimit(DEPTH_MAX);
        Message found = DynamicMessage.parseFrom(type, input);
        input.checkLastTagWas(0);
        return found;
    }

    /** Bounds the memory that parsing takes. end: the tag behind a group. left: messages, levels. */
    private static void count(
        CodedInputStream input, Descriptors.Descriptor type, int end, int[] left)
        throws IOException {
        for (int tag = input.readTag(); tag != 0 && tag != end; tag = input.readTag()) {
            Descriptors.FieldDescriptor field = type.findFieldByNumber(tag >>> 3);
            int kind = tag & 7;
            if (field == null || kind != 2 && kind != 3
                || field.getJavaType() != Descriptors.FieldDescriptor.JavaType.MESSAGE) {
                if (!input.skipField(tag)) {
                    return; // the end of another group: the library refuses it
                }
                continue;
            }
            if (--left[0] < 0) {
                throw new RegistryException("it has more than " + MESSAGES_MAX + " messages");
            }
            if (--left[1] < 0) {
                throw new RegistryException("it has more than " + DEPTH_MAX + " levels");
            }
            if (kind == 2) {
                int limit = input.pushLimit(input.readRawVarint32());
                count(input, field.getMessageType(), 0, left);
                input.popLimit(limit);
            } else {
                count(input, field.getMessageType(), tag & ~7 | 4, left);
            }
            left[1]++;
        }
    }

    /**
     * A field that the schema lacks would be missing in the JSON. The library bounds the levels of
     * a message, but not those of an Any in an Any.
     */
    private void checkKnown(Message found, int depth) throws IOException {
        if (depth > DEPTH_MAX) {
            throw new RegistryException("it has more than " + DEPTH_MAX + " levels");
        }
        if (found.getDescriptorForType().getFullName().equals("google.protobuf.Any")) {
            checkContent(found, depth);
        }
        if (!found.getUnknownFields().asMap().isEmpty()) {
            throw new RegistryException("it has a field, or a value of an enum, that the message "
                + found.getDescriptorForType().getFullName() + " lacks");
        }
        Iterator fields = found.getAllFields().entrySet().iterator();
        while (fields.hasNext()) {
            Map.Entry each = (Map.Entry) fields.next();
            Descriptors.FieldDescriptor field = (Descriptors.FieldDescriptor) each.getKey();
            if (field.getJavaType() != Descriptors.FieldDescriptor.JavaType.MESSAGE) {
                continue;
            }
            try {
                if (field.isRepeated()) {
                    Iterator elements = ((List) each.getValue()).iterator();
                    while (elements.hasNext()) {
                        checkKnown((Message) elements.next(), depth + 1);
                    }
                } else {
                    checkKnown((Message) each.getValue(), depth + 1);
                }
            } catch (RegistryException error) {
                throw error.under("." + field.getJsonName() + (field.isRepeated() ? "[*]" : ""));
            }
        }
    }

    private void checkContent(Message any, int depth) throws IOException {
        Descriptors.Descriptor type = any.getDescriptorForType();
        String url = (String) any.getField(type.findFieldByNumber(1));
        Descriptors.Descriptor content = types.find(url.substring(url.lastIndexOf('/') + 1));
        if (content == null) {
            return; // the library refuses it
        }
        byte[] data = ((ByteString) any.getField(type.findFieldByNumber(2))).toByteArray();
        Message found = parsed(content, data, 0);
        checkKnown(found, depth + 1);
        checkText(found, data, 0);
    }

    /** Of proto2, the library replaces bytes that are no UTF-8 by a character, which we look for. */
    private void checkText(Message found, byte[] data, int start) {
        if (!loose) {
            return;
        }
        byte[] again = found.toByteArray();
        if (replacements(again, 0) > replacements(data, start)) {
            throw new RegistryException("a text of the message is no UTF-8");
        }
    }

    private static int replacements(byte[] data, int start) {
        int found = 0;
        for (int index = start + 2; index < data.length; index++) {
            if (data[index] == (byte) 0xbd && data[index - 1] == (byte) 0xbf
                && data[index - 2] == (byte) 0xef) {
                found++;
            }
        }
        return found;
    }

    /** The message of those numbers that the JSON is, behind head and the numbers. */
    public byte[] bytes(byte[] json, byte[] head, int[] numbers) {
        Descriptors.Descriptor type = message(numbers);
        JsonToAvro.document(json); // the library takes what is no JSON, and fields that are twice
        ByteArrayOutputStream made = new ByteArrayOutputStream();
        made.write(head, 0, head.length);
        if (numbers.length == 1 && numbers[0] == 0) {
            made.write(0);
        } else {
            write(made, numbers.length);
            for (int index = 0; index < numbers.length; index++) {
                write(made, numbers[index]);
            }
        }
        String text = new String(json, StandardCharsets.UTF_8);
        try {
            DynamicMessage.Builder builder = DynamicMessage.newBuilder(type);
            parser.merge(text, builder);
            byte[] body = builder.build().toByteArray();
            made.write(body, 0, body.length);
            return made.toByteArray();
        } catch (InvalidProtocolBufferException error) {
            check(type, JsonParser.parseString(text));
            throw new RegistryException("the JSON does not fit the message " + type.getFullName());
        } catch (UninitializedMessageException error) {
            throw new RegistryException("a required field is missing, and has no value");
        }
    }

    private static void write(ByteArrayOutputStream made, int value) {
        int rest = value << 1; // never negative
        for (; (rest & ~0x7f) != 0; rest >>>= 7) {
            made.write(rest & 0x7f | 0x80);
        }
        made.write(rest);
    }

    /** Raise with the path of what does not fit: the library's messages quote the JSON. */
    private void check(Descriptors.Descriptor type, JsonElement json) {
        if (type.getFullName().startsWith("google.protobuf.")) {
            throw needs(type.getFullName());
        }
        if (!json.isJsonObject()) {
            throw needs("an object: the message " + type.getFullName());
        }
        Iterator members = json.getAsJsonObject().entrySet().iterator();
        while (members.hasNext()) {
            Map.Entry member = (Map.Entry) members.next();
            String name = (String) member.getKey();
            Descriptors.FieldDescriptor field = field(type, name);
            if (field == null) {
                throw new RegistryException(
                    "the object has a field that the message " + type.getFullName() + " lacks");
            }
            JsonObject alone = new JsonObject();
            alone.add(name, (JsonElement) member.getValue());
            try {
                parser.merge(alone.toString(), DynamicMessage.newBuilder(type));
            } catch (InvalidProtocolBufferException error) {
                try {
                    check(field, (JsonElement) member.getValue());
                } catch (RegistryException found) {
                    throw found.under("." + field.getJsonName());
                }
            }
        }
    }

    private void check(Descriptors.FieldDescriptor field, JsonElement json) {
        boolean message = field.getJavaType() == Descriptors.FieldDescriptor.JavaType.MESSAGE;
        String called = message ? field.getMessageType().getFullName()
            : field.getJavaType() == Descriptors.FieldDescriptor.JavaType.ENUM
                ? "a value of the enum " + field.getEnumType().getFullName()
                : field.getType().toString().toLowerCase(java.util.Locale.ROOT);
        if (field.isMapField()) {
            throw needs("an object: a map"); // its keys are the record's
        }
        if (!field.isRepeated()) {
            if (message) {
                check(field.getMessageType(), json);
            }
            throw needs(called);
        }
        if (message && json.isJsonArray()) {
            JsonArray elements = json.getAsJsonArray();
            for (int index = 0; index < elements.size(); index++) {
                try {
                    check(field.getMessageType(), elements.get(index));
                } catch (RegistryException error) {
                    throw error.under("[" + index + "]");
                }
            }
        }
        throw needs("an array of " + called);
    }

    private static Descriptors.FieldDescriptor field(Descriptors.Descriptor type, String name) {
        Iterator fields = type.getFields().iterator();
        while (fields.hasNext()) {
            Descriptors.FieldDescriptor one = (Descriptors.FieldDescriptor) fields.next();
            if (one.getJsonName().equals(name) || one.getName().equals(name)) {
                return one;
            }
        }
        return null;
    }

    private static RegistryException needs(String what) {
        return new RegistryException("the schema needs " + what + " here");
    }

    /** Fields that are not there are shown as well: little data may have much JSON. */
    private static final class Bounded implements Appendable {
        final StringBuilder text = new StringBuilder();

        public Appendable append(CharSequence more) {
            return append(more, 0, more.length());
        }

        public Appendable append(CharSequence more, int start, int end) {
            room(end - start);
            text.append(more, start, end);
            return this;
        }

        public Appendable append(char one) {
            room(1);
            text.append(one);
            return this;
        }

        private void room(int more) {
            if ((long) text.length() + more > AvroToJson.BYTES_MAX) {
                throw new RegistryException(
                    "its JSON has more than " + (AvroToJson.BYTES_MAX >> 20) + " MiB");
            }
        }
    }
}
