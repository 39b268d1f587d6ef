// Hugging Face's JavaScript client against a server: every kind of task at an address of its own.
import { InferenceClient } from "@huggingface/inference";

const [url, text, context] = process.argv.slice(2);
const at = (task) => new InferenceClient("a-token").endpoint(`${url}/t/${task}`);

const seen = {
  tone: await at("tone").textClassification({ inputs: text }),
  raw: await at("several").textClassification({ inputs: text, parameters: { function_to_apply: "none", top_k: 2 } }),
  tags: await at("tags").tokenClassification({ inputs: text, parameters: { ignore_labels: [] } }),
  spans: await at("spans").questionAnswering({ inputs: { question: text, context } }),
  nli: await at("nli").zeroShotClassification({ inputs: text, parameters: { candidate_labels: ["delivery", "money"] } }),
  refused: await at("nothing")
    .textClassification({ inputs: text })
    .catch((error) => JSON.stringify(error.httpResponse ?? String(error))),
};
console.log(JSON.stringify(seen));
