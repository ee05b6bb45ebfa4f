package varve.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.common.header.Header;

/**
 * One JSON command per line in, one JSON answer per line out, so that one virtual machine serves many steps.
 *
 * <p>An answer is either the result or {"error": class, "message": text}; an error never ends the shell. Binary
 * values travel as base64, null as JSON null.
 */
abstract class Shell {
    static final ObjectMapper JSON = new ObjectMapper();

    abstract JsonNode run(String operation, JsonNode command) throws Exception;

    void serve() throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.write((JSON.writeValueAsString(answer(line)) + "\n").getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
    }

    private JsonNode answer(String line) {
        try {
            JsonNode command = JSON.readTree(line);
            return run(command.get("op").asText(), command);
        } catch (Throwable failure) {
            Throwable cause = failure;
            while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                    && cause.getCause() != null) {
                cause = cause.getCause();
            }
            ObjectNode answer = JSON.createObjectNode();
            answer.put("error", cause.getClass().getSimpleName());
            answer.put("message", String.valueOf(cause.getMessage()));
            return answer;
        }
    }

    static Map<String, Object> properties(JsonNode node) {
        Map<String, Object> properties = new LinkedHashMap<>();
        if (node != null) {
            node.properties().forEach(field -> properties.put(field.getKey(), field.getValue().asText()));
        }
        return properties;
    }

    static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    static String text(ByteBuffer buffer) {
        if (buffer == null) {
            return null;
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return text(bytes);
    }

    static ArrayNode headers(Iterable<Header> headers) {
        ArrayNode pairs = JSON.createArrayNode();
        for (Header header : headers) {
            pairs.addArray().add(header.key()).add(text(header.value()));
        }
        return pairs;
    }
}
