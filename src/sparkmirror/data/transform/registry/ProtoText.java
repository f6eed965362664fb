package sparkmirror;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.sparkproject.connect.protobuf.DescriptorProtos;

/**
 * Reads the text of a .proto file, which is what registries answer, as a descriptor.
 *
 * Syntax is proto2 or proto3. Of options, only `json_name` and `packed` decide about records; the
 * others, services and extensions are skipped. Protobuf's library then resolves the names of types.
 */
public final class ProtoText {
    private static final int LEVELS_MAX = 60;
    private static final int CHARS_SHOWN = 40;
    /** What the end of the text is as a token. */
    private static final String END = "";
    private static final Map SCALARS = new HashMap();

    static {
        String names = "double float int64 uint64 int32 fixed64 fixed32 bool string - - bytes "
            + "uint32 - sfixed32 sfixed64 sint32 sint64"; // by number; -: no name of a scalar
        String[] each = names.split(" ");
        for (int index = 0; index < each.length; index++) {
            SCALARS.put(each[index], Integer.valueOf(index + 1));
        }
        SCALARS.remove("-");
    }

    private final String text;
    private int at = 0;
    /** The token that comes next. A string begins with its quote, and has no second one. */
    private String next;
    private boolean proto3 = false;

    private ProtoText(String text) {
        this.text = text;
        advance();
    }

    /** name: how others import it. Raises RegistryException. */
    public static DescriptorProtos.FileDescriptorProto file(String name, String text) {
        return new ProtoText(text).whole(name);
    }

    /** A message that is read: nested ones are in the order in which their indexes count. */
    private static final class Parts {
        final DescriptorProtos.DescriptorProto.Builder message =
            DescriptorProtos.DescriptorProto.newBuilder();
        /** Messages that have no index of their own: those of groups, then those of maps. */
        final List groups = new ArrayList();
        final List entries = new ArrayList();
        final List fields = new ArrayList();
    }

    // -- the file --------------------------------------------------------------------------------

    private DescriptorProtos.FileDescriptorProto whole(String name) {
        DescriptorProtos.FileDescriptorProto.Builder made =
            DescriptorProtos.FileDescriptorProto.newBuilder();
        made.setName(name);
        while (!next.equals(END)) {
            if (taken("syntax")) {
                expect("=");
                String syntax = string();
                if (!syntax.equals("proto2") && !syntax.equals("proto3")) {
                    throw wrong("its syntax is neither proto2 nor proto3");
                }
                proto3 = syntax.equals("proto3");
                made.setSyntax(syntax);
                expect(";");
            } else if (next.equals("edition")) {
                throw wrong("it has an edition; proto2 and proto3 are supported");
            } else if (taken("package")) {
                made.setPackage(path());
                expect(";");
            } else if (taken("import")) {
                imported(made);
            } else if (taken("message")) {
                made.addMessageType(message(1));
            } else if (taken("enum")) {
                made.addEnumType(enumeration());
            } else if (taken("service") || taken("extend")) {
                skipTo("{");
                skipBlock();
            } else {
                skipped();
            }
        }
        return (DescriptorProtos.FileDescriptorProto) made.build();
    }

    private void imported(DescriptorProtos.FileDescriptorProto.Builder made) {
        boolean shared = taken("public");
        if (!shared && !taken("weak")) {
            taken("option");
        }
        if (shared) {
            made.addPublicDependency(made.getDependencyCount());
        }
        made.addDependency(string());
        expect(";");
    }

    /** An option, or a semicolon too much. */
    private void skipped() {
        if (taken("option")) {
            skipTo(";");
        } else {
            expect(";");
        }
    }

    // -- messages --------------------------------------------------------------------------------

    private DescriptorProtos.DescriptorProto message(int level) {
        return body(identifier(), level);
    }

    private DescriptorProtos.DescriptorProto body(String name, int level) {
        if (level > LEVELS_MAX) {
            throw wrong("it has more than " + LEVELS_MAX + " levels of messages");
        }
        Parts parts = new Parts();
        parts.message.setName(name);
        expect("{");
        while (!taken("}")) {
            if (taken("message")) {
                parts.message.addNestedType(message(level + 1));
            } else if (taken("enum")) {
                parts.message.addEnumType(enumeration());
            } else if (taken("reserved") || taken("extensions")) {
                skipTo(";");
            } else if (taken("extend")) {
                skipTo("{");
                skipBlock();
            } else if (taken("oneof")) {
                oneof(parts, level);
            } else if (next.equals("option") || next.equals(";")) {
                skipped();
            } else {
                field(parts, -1, level);
            }
        }
        return finished(parts);
    }

    private DescriptorProtos.DescriptorProto finished(Parts parts) {
        for (int index = 0; index < parts.groups.size(); index++) {
            parts.message.addNestedType(
                (DescriptorProtos.DescriptorProto) parts.groups.get(index));
        }
        for (int index = 0; index < parts.entries.size(); index++) {
            parts.message.addNestedType(
                (DescriptorProtos.DescriptorProto) parts.entries.get(index));
        }
        for (int index = 0; index < parts.fields.size(); index++) {
            DescriptorProtos.FieldDescriptorProto.Builder field =
                (DescriptorProtos.FieldDescriptorProto.Builder) parts.fields.get(index);
            if (field.getProto3Optional()) { // a oneof of its own, behind those of the text
                field.setOneofIndex(parts.message.getOneofDeclCount());
                parts.message.addOneofDecl(DescriptorProtos.OneofDescriptorProto.newBuilder()
                    .setName("_" + field.getName()));
            }
            parts.message.addField(field);
        }
        return (DescriptorProtos.DescriptorProto) parts.message.build();
    }

    private void oneof(Parts parts, int level) {
        int number = parts.message.getOneofDeclCount();
        parts.message.addOneofDecl(
            DescriptorProtos.OneofDescriptorProto.newBuilder().setName(identifier()));
        expect("{");
        while (!taken("}")) {
            if (next.equals("option") || next.equals(";")) {
                skipped();
            } else {
                field(parts, number, level);
            }
        }
    }

    /** oneof: its number; -1: none. */
    private void field(Parts parts, int oneof, int level) {
        DescriptorProtos.FieldDescriptorProto.Builder made =
            DescriptorProtos.FieldDescriptorProto.newBuilder();
        parts.fields.add(made);
        made.setLabel(DescriptorProtos.FieldDescriptorProto.Label.LABEL_OPTIONAL);
        if (oneof >= 0) {
            made.setOneofIndex(oneof);
        } else if (taken("repeated")) {
            made.setLabel(DescriptorProtos.FieldDescriptorProto.Label.LABEL_REPEATED);
        } else if (taken("required")) {
            made.setLabel(DescriptorProtos.FieldDescriptorProto.Label.LABEL_REQUIRED);
        } else if (taken("optional") && proto3) {
            made.setProto3Optional(true);
        }
        boolean group = taken("group");
        if (group) {
            String name = identifier();
            made.setName(name.toLowerCase(java.util.Locale.ROOT)).setTypeName(name)
                .setType(DescriptorProtos.FieldDescriptorProto.Type.TYPE_GROUP);
            number(made);
            parts.groups.add(body(name, level + 1));
            return;
        }
        String type = typeName();
        if (type.equals("map") && taken("<")) {
            String key = typeName();
            expect(",");
            String value = typeName();
            expect(">");
            made.setName(identifier());
            entry(parts, made, key, value);
        } else {
            setType(made, type);
            made.setName(identifier());
        }
        number(made);
        expect(";");
    }

    /** The rest of a field, without its end: number and options. */
    private void number(DescriptorProtos.FieldDescriptorProto.Builder made) {
        expect("=");
        made.setNumber(whole());
        if (!taken("[")) {
            return;
        }
        while (!taken("]")) {
            String name = option();
            if (name.equals("json_name")) {
                made.setJsonName(string());
            } else if (name.equals("packed")) {
                made.setOptions(DescriptorProtos.FieldOptions.newBuilder()
                    .setPacked(identifier().equals("true")));
            } else {
                skipValue();
            }
            taken(",");
        }
    }

    private void entry(
        Parts parts, DescriptorProtos.FieldDescriptorProto.Builder field, String key,
        String value) {
        StringBuilder name = new StringBuilder();
        boolean upper = true;
        for (int index = 0; index < field.getName().length(); index++) {
            char one = field.getName().charAt(index);
            if (one != '_') {
                name.append(upper ? Character.toUpperCase(one) : one);
            }
            upper = one == '_';
        }
        name.append("Entry");
        DescriptorProtos.DescriptorProto.Builder made =
            DescriptorProtos.DescriptorProto.newBuilder();
        made.setName(name.toString());
        made.setOptions(DescriptorProtos.MessageOptions.newBuilder().setMapEntry(true));
        String[] types = new String[] {key, value};
        for (int index = 0; index < types.length; index++) {
            DescriptorProtos.FieldDescriptorProto.Builder part =
                DescriptorProtos.FieldDescriptorProto.newBuilder();
            part.setName(index == 0 ? "key" : "value").setNumber(index + 1)
                .setLabel(DescriptorProtos.FieldDescriptorProto.Label.LABEL_OPTIONAL);
            setType(part, types[index]);
            made.addField(part);
        }
        parts.entries.add(made.build());
        field.setLabel(DescriptorProtos.FieldDescriptorProto.Label.LABEL_REPEATED);
        field.setType(DescriptorProtos.FieldDescriptorProto.Type.TYPE_MESSAGE);
        field.setTypeName(name.toString());
    }

    /** Whether another type is a message or an enum is seen when its name is resolved. */
    private static void setType(
        DescriptorProtos.FieldDescriptorProto.Builder made, String type) {
        Integer number = (Integer) SCALARS.get(type);
        if (number == null) {
            made.setTypeName(type);
        } else {
            made.setType(
                DescriptorProtos.FieldDescriptorProto.Type.forNumber(number.intValue()));
        }
    }

    private DescriptorProtos.EnumDescriptorProto enumeration() {
        DescriptorProtos.EnumDescriptorProto.Builder made =
            DescriptorProtos.EnumDescriptorProto.newBuilder();
        made.setName(identifier());
        expect("{");
        while (!taken("}")) {
            if (taken("reserved")) {
                skipTo(";");
            } else if (next.equals("option") || next.equals(";")) {
                skipped();
            } else {
                DescriptorProtos.EnumValueDescriptorProto.Builder value =
                    DescriptorProtos.EnumValueDescriptorProto.newBuilder();
                value.setName(identifier());
                expect("=");
                value.setNumber(whole());
                if (taken("[")) {
                    while (!taken("]")) {
                        option();
                        skipValue();
                        taken(",");
                    }
                }
                expect(";");
                made.addValue(value);
            }
        }
        return (DescriptorProtos.EnumDescriptorProto) made.build();
    }

    // -- what is skipped -------------------------------------------------------------------------

    /** The name of an option, with its equals sign. */
    private String option() {
        StringBuilder name = new StringBuilder();
        while (!taken("=")) {
            name.append(token());
        }
        return name.toString();
    }

    /** The value of an option in brackets, up to what ends it. */
    private void skipValue() {
        while (!next.equals(",") && !next.equals("]")) {
            if (token().equals("{")) {
                skipBlock();
            }
        }
    }

    /** Up to that token, and the token. */
    private void skipTo(String end) {
        while (!taken(end)) {
            if (token().equals("{")) {
                skipBlock();
            }
        }
    }

    /** The rest of a block that has begun. */
    private void skipBlock() {
        for (int open = 1; open > 0;) {
            String one = token();
            open += one.equals("{") ? 1 : one.equals("}") ? -1 : 0;
        }
    }

    // -- tokens ----------------------------------------------------------------------------------

    private String token() {
        if (next.equals(END)) {
            throw wrong("its text is cut off");
        }
        String found = next;
        advance();
        return found;
    }

    private boolean taken(String wanted) {
        if (!next.equals(wanted)) {
            return false;
        }
        advance();
        return true;
    }

    private void expect(String wanted) {
        if (!taken(wanted)) {
            throw expected("'" + wanted + "'");
        }
    }

    private String identifier() {
        if (next.equals(END) || !isWord(next.charAt(0)) || Character.isDigit(next.charAt(0))) {
            throw expected("a name");
        }
        return token();
    }

    /** A name with dots. */
    private String path() {
        StringBuilder found = new StringBuilder(identifier());
        while (taken(".")) {
            found.append('.').append(identifier());
        }
        return found.toString();
    }

    private String typeName() {
        return taken(".") ? "." + path() : path();
    }

    private int whole() {
        String sign = taken("-") ? "-" : "";
        try {
            return Integer.decode(sign + next).intValue();
        } catch (NumberFormatException error) {
            throw expected("a number");
        } finally {
            token();
        }
    }

    /** Strings side by side are one. */
    private String string() {
        if (!isString()) {
            throw expected("a string");
        }
        StringBuilder found = new StringBuilder();
        while (isString()) {
            found.append(token().substring(1));
        }
        return found.toString();
    }

    private boolean isString() {
        return next.startsWith("\"") || next.startsWith("'");
    }

    private void advance() {
        skipBlanks();
        int start = at;
        if (at >= text.length()) {
            next = END;
            return;
        }
        char first = text.charAt(at++);
        if (first == '"' || first == '\'') {
            next = first + quoted(first);
            return;
        }
        if (isWord(first)) {
            while (at < text.length() && isWord(text.charAt(at))) {
                at++;
            }
        }
        next = text.substring(start, at);
    }

    /** Names of files and of JSON have no octal escapes; other strings are skipped. */
    private String quoted(char end) {
        StringBuilder found = new StringBuilder();
        while (at < text.length() && text.charAt(at) != end) {
            if (text.charAt(at) == '\\' && at + 1 < text.length()) {
                at++;
            }
            found.append(text.charAt(at++));
        }
        if (at++ >= text.length()) {
            throw wrong("a string has no end");
        }
        return found.toString();
    }

    private void skipBlanks() {
        while (at < text.length()) {
            if (Character.isWhitespace(text.charAt(at)) || text.charAt(at) == '\ufeff') {
                at++;
            } else if (text.startsWith("//", at)) {
                int end = text.indexOf('\n', at);
                at = end < 0 ? text.length() : end;
            } else if (text.startsWith("/*", at)) {
                int end = text.indexOf("*/", at + 2);
                if (end < 0) {
                    throw wrong("a comment has no end");
                }
                at = end + 2;
            } else {
                return;
            }
        }
    }

    private static boolean isWord(char one) {
        return one >= 'a' && one <= 'z' || one >= 'A' && one <= 'Z' || one >= '0' && one <= '9'
            || one == '_';
    }

    private RegistryException expected(String what) {
        if (next.equals(END)) {
            return wrong("its text is cut off");
        }
        String found =
            next.length() > CHARS_SHOWN ? next.substring(0, CHARS_SHOWN) + "..." : next;
        return wrong(what + " is missing before '" + found.replaceAll("\\s+", " ") + "'");
    }

    private RegistryException wrong(String what) {
        int line = 1;
        for (int index = 0; index < at && index < text.length(); index++) {
            line += text.charAt(index) == '\n' ? 1 : 0;
        }
        return new RegistryException("the schema is no .proto file, line " + line + ": " + what);
    }
}
