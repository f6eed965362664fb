import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.Collections;
import java.util.List;
import kafka.consumer.BaseConsumerRecord;
import kafka.tools.MirrorMaker;
import org.apache.kafka.clients.producer.ProducerRecord;

/** A message handler of MirrorMaker 1 that masks the card number of JSON events. */
public class MaskHandler implements MirrorMaker.MirrorMakerMessageHandler {
    private final ObjectMapper mapper = new ObjectMapper();

    @Override
    public List<ProducerRecord<byte[], byte[]>> handle(BaseConsumerRecord record) {
        try {
            JsonNode event = mapper.readTree(record.value());
            if (event.has("card")) {
                ((ObjectNode) event).put("card", "***");
            }
            return Collections.singletonList(new ProducerRecord<>(
                    record.topic(), record.partition(), record.timestamp(),
                    record.key(), mapper.writeValueAsBytes(event), record.headers()));
        } catch (IOException error) {
            throw new IllegalArgumentException("no JSON at offset " + record.offset(), error);
        }
    }
}
