package sparkmirror;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.Serializable;
import java.net.HttpURLConnection;
import java.net.SocketTimeoutException;
import java.net.URL;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.UUID;

import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.avro.NameValidator;
import org.apache.avro.Schema;

/**
 * A schema registry with Confluent's REST API.
 *
 * An id means one schema for ever, so a schema is asked for once per JVM. A request ends after
 * TIMEOUT_MS, the first one of a start after START_TIMEOUT_MS, whatever the registry does. After
 * one that failed, nobody asks again for AGAIN_MS:
 * where it is unavailable, records fail at once instead of holding up their task one by one.
 */
public final class SchemaRegistry implements Serializable {
    // Shorter than the time for which a sink waits for the reason of a failed record.
    private static final int TIMEOUT_MS = 2500;
    // At the start nothing waits, and a busy JVM takes seconds for its first handshake.
    private static final int START_TIMEOUT_MS = 10000;
    private static final long AGAIN_MS = 2000;
    private static final int SCHEMAS_MAX = 1000;
    private static final int UNKNOWN_MAX = 10;
    private static final int REFERENCES_MAX = 100;
    private static final int ANSWER_BYTES_MAX = 8 << 20;
    private static final int TEXT_CHARS_MAX = 200;

    private static final Map STATES = new HashMap();

    private final String key = UUID.randomUUID().toString();
    private final String[] urls;
    private final String authorization;
    private final byte[] trusted;
    private final String trustedType;
    private final String trustedPassword;
    private final byte[] ownKey;
    private final byte[] ownChain;

    /**
     * authorization: the header's value, null for no login. trusted: a truststore with certificates
     * of authorities, null for those of Java; type: JKS, PKCS12 or PEM. ownKey: the key of a client
     * certificate, as PKCS 8, with its chain as PEM; null for none.
     */
    public SchemaRegistry(
        String[] urls, String authorization, byte[] trusted, String type, String password,
        byte[] ownKey, byte[] ownChain) {
        this.urls = urls;
        this.authorization = authorization;
        this.trusted = trusted;
        this.trustedType = type;
        this.trustedPassword = password;
        this.ownKey = ownKey;
        this.ownChain = ownChain;
    }

    /** A schema of the registry. avro, proto: null for other types. */
    public static final class Registered {
        public final String type;
        public final AvroType avro;
        public final ProtoSchema proto;

        Registered(String type, AvroType avro, ProtoSchema proto) {
            this.type = type;
            this.avro = avro;
            this.proto = proto;
        }
    }

    /** What this JVM knows of the registry; all copies of one SchemaRegistry share it. */
    private static final class State {
        final Map schemas = new LinkedHashMap(16, 0.75f, true);
        final Map latest = new HashMap();
        final Map unknown = new HashMap();
        long unknownUntil = 0;
        int first = 0; // of the addresses: the one that answered
        RegistryException down = null;
        long downUntil = 0;
        SSLSocketFactory sockets = null;
    }

    private State state() {
        synchronized (STATES) {
            State found = (State) STATES.get(key);
            if (found == null) {
                found = new State();
                STATES.put(key, found);
            }
            return found;
        }
    }

    /** The schema of that id. Raises RegistryException. */
    public Registered schema(int id) {
        State state = state();
        Integer number = Integer.valueOf(id);
        synchronized (state) {
            Registered found = (Registered) state.schemas.get(number);
            if (found != null) {
                return found;
            }
            checkUnknown(state, number);
        }
        try {
            JsonNode answer = get("/schemas/ids/" + id, "the registry has no schema " + id);
            Registered found = understood(answer);
            synchronized (state) {
                state.schemas.put(number, found);
                state.unknown.clear(); // it is not all garbage
                if (state.schemas.size() > SCHEMAS_MAX) {
                    Iterator oldest = state.schemas.keySet().iterator();
                    oldest.next();
                    oldest.remove();
                }
            }
            return found;
        } catch (RegistryException error) {
            if (!error.kind().equals(RegistryException.UNAVAILABLE)) {
                synchronized (state) {
                    state.unknown.put(number, error);
                }
            }
            throw error;
        }
    }

    /** Garbage in a topic must not make a request of each record. */
    private static void checkUnknown(State state, Integer number) {
        long now = System.nanoTime() / 1000000L;
        if (now >= state.unknownUntil) {
            state.unknown.clear();
            state.unknownUntil = now + AGAIN_MS;
        }
        RegistryException before = (RegistryException) state.unknown.get(number);
        if (before != null) {
            throw before.again();
        }
        if (state.unknown.size() >= UNKNOWN_MAX) {
            throw new RegistryException(RegistryException.MISSING, "the registry lacks the last "
                + UNKNOWN_MAX + " schemas that it was asked for; schema " + number
                + " is asked for later");
        }
    }

    /** The id of a subject's newest schema, as it was when this JVM asked first. */
    public int latest(String subject) {
        State state = state();
        synchronized (state) {
            Integer known = (Integer) state.latest.get(subject);
            if (known != null) {
                return known.intValue();
            }
        }
        JsonNode answer = get("/subjects/" + escaped(subject) + "/versions/latest",
            "the registry has no subject '" + subject + "'");
        Integer found = Integer.valueOf(part(answer, "id").asInt());
        synchronized (state) {
            state.latest.put(subject, found);
        }
        return found.intValue();
    }

    /** Why the registry cannot be used: it is unavailable, or refuses the login; null if it can. */
    public RegistryException fault() {
        try {
            get("/schemas/types", "the registry does not list its types", START_TIMEOUT_MS);
        } catch (RegistryException error) {
            // Old ones have no such list; they answered.
            return error.kind().equals(RegistryException.MISSING) ? null : error;
        }
        return null;
    }

    // -- schemas ---------------------------------------------------------------------------------

    /** Also what libraries say of a schema must be remembered: else each record asks for it. */
    private Registered understood(JsonNode answer) {
        try {
            return registered(answer);
        } catch (RegistryException error) {
            throw error;
        } catch (RuntimeException error) {
            throw new RegistryException("the schema cannot be read: " + words(error));
        } catch (StackOverflowError error) {
            throw new RegistryException("the schema's levels do not fit into the task's stack");
        }
    }

    private Registered registered(JsonNode answer) {
        String type = part(answer, "schemaType").asText("AVRO");
        if (type.equals("PROTOBUF")) {
            Map texts = new HashMap();
            addReferences(answer, null, texts, new HashSet());
            return new Registered(
                type, null, ProtoSchema.of(part(answer, "schema").asText(), texts));
        }
        if (!type.equals("AVRO")) {
            return new Registered(type, null, null);
        }
        Schema.Parser parser = new Schema.Parser(NameValidator.NO_VALIDATION);
        parser.setValidateDefaults(false); // registries accept wrong ones
        addReferences(answer, parser, new HashMap(), new HashSet());
        return new Registered(type, AvroType.of(parsed(answer, parser)), null);
    }

    /**
     * The schemas that this one names, each after those that it names itself: Avro's for the
     * parser, which is null for Protobuf, and all texts by the names of the references.
     */
    private void addReferences(JsonNode answer, Schema.Parser parser, Map texts, Set seen) {
        Iterator references = part(answer, "references").elements();
        while (references.hasNext()) {
            JsonNode reference = (JsonNode) references.next();
            String name = part(reference, "name").asText();
            String subject = part(reference, "subject").asText();
            String version = part(reference, "version").asText();
            // Another name of the same version is another file to import.
            if (!seen.add((parser == null ? name + " " : "") + subject + "/" + version)) {
                continue;
            }
            if (seen.size() > REFERENCES_MAX) {
                throw new RegistryException(
                    "the schema has more than " + REFERENCES_MAX + " references");
            }
            JsonNode found = get("/subjects/" + escaped(subject) + "/versions/" + escaped(version)
                    + "?deleted=true", // records with deleted schemas can still be read
                "the schema names version " + version + " of '" + subject
                    + "', which the registry lacks");
            addReferences(found, parser, texts, seen);
            if (parser != null) {
                parsed(found, parser);
            }
            texts.put(name, part(found, "schema").asText());
        }
    }

    private static Schema parsed(JsonNode answer, Schema.Parser parser) {
        try {
            return parser.parse(part(answer, "schema").asText());
        } catch (RuntimeException error) {
            throw new RegistryException("the schema is no Avro schema: " + words(error));
        }
    }

    // -- requests --------------------------------------------------------------------------------

    /** The answer's JSON. missing: the words for an answer that there is no such thing. */
    private JsonNode get(String path, String missing) {
        return get(path, missing, TIMEOUT_MS);
    }

    /** All addresses together have timeoutMs. */
    private JsonNode get(String path, String missing, int timeoutMs) {
        int limitMs = timeoutMs / urls.length;
        State state = state();
        int first;
        synchronized (state) {
            if (state.down != null && System.nanoTime() / 1000000L < state.downUntil) {
                throw state.down.again();
            }
            first = state.first;
        }
        RegistryException failed = null;
        for (int count = 0; count < urls.length; count++) {
            int index = (first + count) % urls.length;
            try {
                JsonNode answer = answered(urls[index], path, missing, limitMs);
                synchronized (state) {
                    state.first = index;
                    state.down = null;
                }
                return answer;
            } catch (RegistryException error) {
                if (error.kind().equals(RegistryException.MISSING)) {
                    throw error;
                }
                failed = failed == null ? error : failed;
            }
        }
        synchronized (state) {
            state.down = failed;
            state.downUntil = System.nanoTime() / 1000000L + AGAIN_MS;
        }
        throw failed;
    }

    private JsonNode answered(String url, String path, String missing, int limitMs) {
        Request request = new Request(url + path, authorization, sockets(url), limitMs);
        Thread thread = new Thread(request, "sparkmirror-registry");
        thread.setDaemon(true);
        thread.start();
        try {
            thread.join(limitMs);
        } catch (InterruptedException error) {
            abandon(request);
            Thread.currentThread().interrupt();
            throw unavailable(url, "the task was cancelled");
        }
        boolean late = thread.isAlive();
        if (late) {
            abandon(request);
        }
        if (late || request.fault instanceof SocketTimeoutException) { // whichever limit is first
            throw unavailable(url, "no answer within " + limitMs + " ms");
        }
        if (request.fault instanceof SSLException) {
            throw new RegistryException(
                RegistryException.TLS, "the registry " + url + ": " + words(request.fault));
        }
        if (request.fault != null) {
            throw unavailable(url, words(request.fault));
        }
        return judged(url, request, missing);
    }

    /** On a thread of its own: closing waits for a read that goes on. */
    private static void abandon(final Request request) {
        Thread thread = new Thread(new Runnable() {
            public void run() {
                request.abandon();
            }
        }, "sparkmirror-registry-close");
        thread.setDaemon(true);
        thread.start();
    }

    private static JsonNode judged(String url, Request request, String missing) {
        JsonNode found = null;
        try {
            found = new ObjectMapper().readTree(request.body);
        } catch (IOException error) {
            found = null;
        }
        boolean json = found != null && found.isContainerNode();
        if (request.status == 200 && json) {
            return found;
        }
        if (request.status == 401 || request.status == 403) {
            throw new RegistryException(RegistryException.LOGIN,
                "the registry " + url + " refuses the login (HTTP " + request.status + ")");
        }
        // Any server has a 404 for wrong addresses; only a registry's has this.
        if (request.status == 404 && json && found.has("error_code")) {
            throw new RegistryException(RegistryException.MISSING, missing);
        }
        throw unavailable(url, "HTTP " + request.status
            + (json ? "" : ", and no JSON as a schema registry sends it"));
    }

    private static RegistryException unavailable(String url, String why) {
        return new RegistryException(
            RegistryException.UNAVAILABLE, "the registry " + url + " is unavailable: " + why);
    }

    private SSLSocketFactory sockets(String url) {
        if (trusted == null && ownKey == null || !url.startsWith("https:")) {
            return null;
        }
        State state = state();
        synchronized (state) {
            if (state.sockets == null) {
                try {
                    state.sockets = opened();
                } catch (Exception error) {
                    throw new RegistryException(
                        RegistryException.TLS,
                        "the truststore or keystore cannot be read: " + words(error));
                }
            }
            return state.sockets;
        }
    }

    private SSLSocketFactory opened() throws Exception {
        TrustManagerFactory managers =
            TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(trusted == null ? null : truststore());
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(ownKey == null ? null : keys(), managers.getTrustManagers(), null);
        return context.getSocketFactory();
    }

    /** The key's type is that of its certificate. */
    private KeyManager[] keys() throws Exception {
        Collection chain = CertificateFactory.getInstance("X.509")
            .generateCertificates(new ByteArrayInputStream(ownChain));
        Certificate[] certificates = new Certificate[chain.size()];
        Iterator found = chain.iterator();
        for (int index = 0; found.hasNext(); index++) {
            certificates[index] = (Certificate) found.next();
        }
        PrivateKey key = KeyFactory.getInstance(certificates[0].getPublicKey().getAlgorithm())
            .generatePrivate(new PKCS8EncodedKeySpec(ownKey));
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        store.setKeyEntry("own", key, new char[0], certificates);
        KeyManagerFactory managers =
            KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        managers.init(store, new char[0]);
        return managers.getKeyManagers();
    }

    private KeyStore truststore() throws Exception {
        boolean pem = trustedType.equals("PEM");
        KeyStore store = KeyStore.getInstance(pem ? "PKCS12" : trustedType);
        InputStream data = new ByteArrayInputStream(trusted);
        if (pem) {
            store.load(null, null);
            Iterator found =
                CertificateFactory.getInstance("X.509").generateCertificates(data).iterator();
            while (found.hasNext()) {
                store.setCertificateEntry("ca" + store.size(), (Certificate) found.next());
            }
        } else {
            store.load(data, trustedPassword == null ? null : trustedPassword.toCharArray());
        }
        if (store.size() == 0) {
            throw new IOException("it has no certificates");
        }
        return store;
    }

    /** The compiler takes path() for the one of another class. */
    private static JsonNode part(JsonNode whole, String name) {
        return (JsonNode) whole.path(name);
    }

    private static String escaped(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    private static String words(Throwable error) {
        String text = error.getMessage();
        String name = error.getClass().getSimpleName();
        text = text == null ? name : name + ": " + text.replaceAll("\\s+", " ");
        return text.length() > TEXT_CHARS_MAX ? text.substring(0, TEXT_CHARS_MAX) + "..." : text;
    }

    /** One GET, in a thread of its own: nothing else ends a slow name server or answer in time. */
    private static final class Request implements Runnable {
        private final String url;
        private final String authorization;
        private final SSLSocketFactory sockets;
        private final int limitMs;
        private volatile HttpURLConnection connection = null;
        int status = 0;
        byte[] body = new byte[0];
        Exception fault = null;

        Request(String url, String authorization, SSLSocketFactory sockets, int limitMs) {
            this.url = url;
            this.authorization = authorization;
            this.sockets = sockets;
            this.limitMs = limitMs;
        }

        public void run() {
            try {
                HttpURLConnection opened = (HttpURLConnection) new URL(url).openConnection();
                connection = opened;
                opened.setConnectTimeout(limitMs);
                opened.setReadTimeout(limitMs);
                opened.setInstanceFollowRedirects(false); // the login is for this address
                opened.setUseCaches(false);
                opened.setRequestProperty("Accept",
                    "application/vnd.schemaregistry.v1+json, application/json");
                if (authorization != null) {
                    opened.setRequestProperty("Authorization", authorization);
                }
                if (sockets != null) {
                    ((HttpsURLConnection) opened).setSSLSocketFactory(sockets);
                }
                status = opened.getResponseCode();
                InputStream answer =
                    status < 400 ? opened.getInputStream() : opened.getErrorStream();
                if (answer != null) {
                    body = whole(answer);
                }
            } catch (Exception error) {
                fault = error;
            }
        }

        private static byte[] whole(InputStream answer) throws IOException {
            try {
                byte[] found = answer.readNBytes(ANSWER_BYTES_MAX + 1);
                if (found.length > ANSWER_BYTES_MAX) {
                    throw new IOException("the answer is too large");
                }
                return found;
            } finally {
                answer.close();
            }
        }

        /** Ends its thread. */
        void abandon() {
            HttpURLConnection opened = connection;
            if (opened != null) {
                opened.disconnect();
            }
        }
    }
}
