// Checks custom resources by the validators of npm's @kubernetes-models packages, which are generated
// from the CustomResourceDefinitions of Istio, the Gateway API and the Prometheus operator.
//
//   node resources.mjs MODELS FILE.json...
//
// MODELS is the folder with these packages in node_modules. A definition lets unknown fields through,
// because the API server drops them: fields that the validator never reads are reported here as unknown.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const PACKAGES = [
  [/\.istio\.io$/, "@kubernetes-models/istio"],
  [/^gateway\.networking\.k8s\.io$/, "@kubernetes-models/gateway-api"],
  [/^monitoring\.coreos\.com$/, "@kubernetes-models/prometheus-operator"],
];

// What the definitions leave to others: the filter's configuration, and Envoy's.
const FREE = [
  /^WasmPlugin\.spec\.pluginConfig$/,
  /^EnvoyFilter\.spec\.configPatches\.\d+\.patch\.value$/,
];

const [models, ...files] = process.argv.slice(2);

// The document, with a note of each field that is read.
function noted(value, path, read) {
  if (value === null || typeof value !== "object") return value;
  return new Proxy(value, {
    get(target, name) {
      if (typeof name === "string" && Object.hasOwn(target, name)) {
        read.add(`${path}.${name}`);
        return noted(target[name], `${path}.${name}`, read);
      }
      return target[name];
    },
  });
}

function* unread(value, path, read) {
  if (value === null || typeof value !== "object") return;
  for (const [name, field] of Object.entries(value)) {
    const at = `${path}.${name}`;
    if (FREE.some((free) => free.test(at))) continue;
    if (read.has(at)) yield* unread(field, at, read);
    else yield at;
  }
}

async function problems(document) {
  const { apiVersion, kind } = document;
  const [group, version] = apiVersion.split("/");
  const found = PACKAGES.find(([groups]) => groups.test(group));
  if (!found) return [`${kind}: no definition of group ${group}`];
  let model;
  try {
    const module = `${models}/node_modules/${found[1]}/${group}/${version}/${kind}.js`;
    model = (await import(pathToFileURL(module)))[kind];
  } catch (error) {
    return [`${kind}: ${apiVersion} has no such kind (${error.message})`];
  }
  const read = new Set([`${kind}.apiVersion`, `${kind}.kind`]);
  const said = [];
  try {
    // Making the model copies every field, so only what its validation reads is noted.
    noted(new model(document), kind, read).validate();
  } catch (error) {
    said.push(`${kind}: ${error.message}`);
  }
  // Labels and annotations are anybody's.
  const { metadata, ...rest } = document;
  for (const at of unread(rest, kind, read)) said.push(`${at}: unknown field`);
  return said;
}

let wrong = false;
for (const file of files) {
  const document = JSON.parse(readFileSync(file, "utf8"));
  const said = await problems(document);
  wrong ||= said.length > 0;
  const name = `${document.kind} ${document.metadata?.namespace}/${document.metadata?.name}`;
  console.log(said.length > 0 ? [name, ...said].join("\n  ") : `${name}: passed`);
}
process.exit(wrong ? 1 : 0);
