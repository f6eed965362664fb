import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.connect.converters.ByteArrayConverter;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.mirror.DefaultReplicationPolicy;
import org.apache.kafka.connect.mirror.MirrorCheckpointConnector;
import org.apache.kafka.connect.mirror.MirrorHeartbeatConnector;
import org.apache.kafka.connect.mirror.MirrorMakerConfig;
import org.apache.kafka.connect.mirror.MirrorSourceConnector;
import org.apache.kafka.connect.mirror.MirrorSourceTask;
import org.apache.kafka.connect.mirror.ReplicationPolicy;
import org.apache.kafka.connect.mirror.SourceAndTarget;
import org.apache.kafka.connect.runtime.ConnectMetrics;
import org.apache.kafka.connect.runtime.SourceConnectorConfig;
import org.apache.kafka.connect.runtime.TransformationStage;
import org.apache.kafka.connect.runtime.distributed.DistributedConfig;
import org.apache.kafka.connect.runtime.isolation.Plugins;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.util.ConnectUtils;
import org.apache.kafka.connect.util.ConnectorTaskId;

/**
 * What a source task of MirrorMaker 2 writes: a source record goes through MirrorSourceTask's
 * conversion, the chain that Connect makes of the connector's configuration, and the converters.
 *
 * Standard input: a JSON array of {config, records}; standard output: the same with {results}, or
 * with {error} if Connect refuses the configuration. For {file}, {connectors}: the keys about SMTs
 * that each connector of the flow A->B gets. A record is [topic, partition, timestamp, key,
 * value, [[name, value], ...]] with bytes as ISO-8859-1 text; a result is such a record, null
 * if it was left out, or {error}.
 */
public class SmtVectors {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Plugins plugins = new Plugins(new HashMap<>());

    public static void main(String[] arguments) throws Exception {
        ArrayNode cases = (ArrayNode) JSON.readTree(System.in);
        // As MirrorMaker does: classes have their short names, too.
        plugins.compareAndSwapWithDelegatingLoader();
        for (JsonNode one : cases) {
            if (one.has("file")) {
                connectors((ObjectNode) one);
            } else {
                answer((ObjectNode) one);
            }
        }
        System.out.println(JSON.writeValueAsString(cases));
        System.exit(0);
    }

    private static void answer(ObjectNode one) throws Exception {
        Map<String, String> config = new HashMap<>();
        config.put("name", "c");
        config.put("connector.class", "org.apache.kafka.connect.mirror.MirrorSourceConnector");
        one.get("config").fields().forEachRemaining(f -> config.put(f.getKey(), f.getValue().asText()));
        List<TransformationStage<SourceRecord>> chain;
        try {
            SourceConnectorConfig made = new SourceConnectorConfig(plugins, config, false);
            chain = made.transformationStages(plugins, new ConnectorTaskId("c", 0), metrics());
        } catch (Exception error) {
            one.put("error", told(error));
            return;
        }
        ArrayNode results = one.putArray("results");
        for (JsonNode record : one.get("records")) {
            try {
                SourceRecord found = converted(record);
                for (TransformationStage<SourceRecord> stage : chain) {
                    if (found != null) {
                        found = stage.apply(found);
                    }
                }
                results.add(found == null ? null : written(found));
            } catch (Exception error) {
                results.addObject().put("error", told(error));
            }
        }
    }

    private static void connectors(ObjectNode one) {
        Map<String, String> file = new HashMap<>();
        one.get("file").fields().forEachRemaining(f -> file.put(f.getKey(), f.getValue().asText()));
        MirrorMakerConfig config = new MirrorMakerConfig(file);
        ObjectNode found = one.putObject("connectors");
        for (Class<?> kind : List.of(MirrorSourceConnector.class, MirrorCheckpointConnector.class, MirrorHeartbeatConnector.class)) {
            ObjectNode keys = found.putObject(kind.getSimpleName());
            new TreeMap<>(config.connectorBaseConfig(new SourceAndTarget("A", "B"), kind)).forEach((key, value) -> {
                if (key.contains("transforms") || key.contains("predicates")) {
                    keys.put(key, value);
                }
            });
        }
    }

    private static ConnectMetrics metrics() {
        Map<String, String> worker = new HashMap<>();
        worker.put("bootstrap.servers", "127.0.0.1:1");
        for (String key : List.of("group.id", "offset.storage.topic", "config.storage.topic", "status.storage.topic")) {
            worker.put(key, "w");
        }
        for (String key : List.of("key.converter", "value.converter")) {
            worker.put(key, ByteArrayConverter.class.getName());
        }
        return new ConnectMetrics("w", new DistributedConfig(worker), Time.SYSTEM, "k");
    }

    private static SourceRecord converted(JsonNode record) throws Exception {
        RecordHeaders headers = new RecordHeaders();
        for (JsonNode header : record.get(5)) {
            headers.add(header.get(0).asText(), bytes(header.get(1)));
        }
        ConsumerRecord<byte[], byte[]> consumed = new ConsumerRecord<>(
            record.get(0).asText(), record.get(1).asInt(), 7, record.get(2).asLong(),
            TimestampType.CREATE_TIME, -1, -1, bytes(record.get(3)), bytes(record.get(4)), headers,
            Optional.empty());
        Constructor<?> constructor = null;
        for (Constructor<?> each : MirrorSourceTask.class.getDeclaredConstructors()) {
            if (each.getParameterCount() == 5) {
                constructor = each;
            }
        }
        constructor.setAccessible(true);
        ReplicationPolicy policy = new DefaultReplicationPolicy();
        Object task = constructor.newInstance(null, null, "A", policy, null);
        Method convert = MirrorSourceTask.class.getDeclaredMethod("convertRecord", ConsumerRecord.class);
        convert.setAccessible(true);
        return (SourceRecord) convert.invoke(task, consumed);
    }

    private static ArrayNode written(SourceRecord record) throws Exception {
        ByteArrayConverter converter = new ByteArrayConverter();
        ArrayNode result = JSON.createArrayNode();
        result.add(record.topic());
        result.add(record.kafkaPartition());
        result.add(ConnectUtils.checkAndConvertTimestamp(record.timestamp()));
        result.add(text(converter.fromConnectData(record.topic(), record.keySchema(), record.key())));
        result.add(text(converter.fromConnectData(record.topic(), record.valueSchema(), record.value())));
        ArrayNode headers = result.addArray();
        for (Header header : record.headers()) {
            ArrayNode pair = headers.addArray();
            pair.add(header.key());
            pair.add(text(converter.fromConnectHeader(record.topic(), header.key(), header.schema(), header.value())));
        }
        return result;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : text.asText().getBytes(StandardCharsets.ISO_8859_1);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.ISO_8859_1);
    }

    private static String told(Throwable error) {
        Throwable root = error;
        while (root.getCause() != null) {
            root = root.getCause();
        }
        return root.getClass().getSimpleName() + ": " + root.getMessage();
    }
}
