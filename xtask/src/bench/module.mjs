// Runs modules of the filter in Node's V8, the engine that Envoy has, behind a host that does
// next to nothing; so what is measured is the module. Argument 1 is the port of a limiter that has
// the limits of the benchmark, 2 the number of rounds, and the others are modules, which are
// compared round by round.
//
// A call of the limiter is real the first time. A checked request's is answered from memory after
// that, by the size of its body: what was asked is the same each time, and so is the answer.

import { readFileSync } from "node:fs";
import { randomFillSync } from "node:crypto";
import http from "node:http";

const CONFIGURATION = bytes(JSON.stringify({
  domain: "shop",
  limiter: { cluster: "limiter", timeout: "1s" },
  descriptors: [{ key: "user", header: "x-user-id" }],
}));
const PATHS = [
  ["no limit matches", "/none"],
  ["leased", "/leased"],
  ["denied from memory", "/denied"],
  ["checked", "/strict"],
];
// Requests between two looks at the clock, and those of them that wait for one answer.
const REQUESTS = 512;
const TOGETHER = 32;
const WARM_UP_ROUNDS = 60;
const [OK, NOT_FOUND, CAS_MISMATCH] = [0, 1, 8];
const [REQUEST, ANSWER] = [0, 6];
const [ROOT, QUEUE] = [1, 1];

const [limiter, rounds] = process.argv.slice(2, 4).map(Number);
const agent = new http.Agent({ keepAlive: true });
const text = new TextDecoder();

function bytes(value) {
  return new TextEncoder().encode(value);
}

// Headers by their names, and all as the host hands them over.
function headerMap(headers) {
  const texts = headers.flat().map(bytes);
  const map = new Map(headers.map(([name], at) => [name, texts[2 * at + 1]]));
  const lengths = new Uint32Array([headers.length, ...texts.map((part) => part.length)]);
  const parts = texts.map((part) => Buffer.concat([part, Buffer.from([0])]));
  map.whole = Buffer.concat([Buffer.from(lengths.buffer), ...parts]);
  return map;
}

// A module in the place that Envoy would give it.
class Vm {
  constructor(file) {
    this.file = file;
    this.shared = new Map();
    this.calls = {};
    this.waiting = [];
    this.known = new Map();
    this.replay = [];
    this.queued = 0;
    this.next = 1000;
  }

  async start() {
    const compiled = await WebAssembly.compile(readFileSync(this.file));
    const imports = { env: this.env(), wasi_snapshot_preview1: this.wasi() };
    // The SDK imports more than the filter calls.
    for (const { module, name } of WebAssembly.Module.imports(compiled)) {
      imports[module][name] ??= () => {
        throw new Error(`${name} was called`);
      };
    }
    for (const module of Object.values(imports)) {
      for (const [name, call] of Object.entries(module)) {
        this.calls[name] = 0;
        module[name] = (...args) => {
          this.calls[name] += 1;
          return call(...args) ?? OK;
        };
      }
    }
    this.exports = (await WebAssembly.instantiate(compiled, imports)).exports;
    this.exports._initialize?.();
    this.exports.proxy_on_context_create(ROOT, 0);
    if (!this.exports.proxy_on_configure(ROOT, CONFIGURATION.length)) {
      throw new Error(`${this.file} refuses its configuration`);
    }
    this.setPath("/");
    for (let poll = 0; poll < 10; poll += 1) await this.tick();
  }

  get memory() {
    if (this.seen !== this.exports.memory.buffer) {
      this.seen = this.exports.memory.buffer;
      this.bytes = new Uint8Array(this.seen);
      this.view = new DataView(this.seen);
    }
    return this;
  }

  read(at, len) {
    return this.memory.bytes.slice(at, at + len);
  }

  string(at, len) {
    return text.decode(this.memory.bytes.subarray(at, at + len));
  }

  give(value, to, toLen) {
    if (value === undefined) return NOT_FOUND;
    const allocate = this.exports.malloc ?? this.exports.proxy_on_memory_allocate;
    const at = value.length ? allocate(value.length) : 0;
    this.memory.bytes.set(value, at);
    this.view.setUint32(to, at, true);
    this.view.setUint32(toLen, value.length, true);
    return OK;
  }

  // What Envoy itself adds to a request is there too.
  setPath(path) {
    const headers = {
      ":authority": "shop.example",
      ":path": path,
      ":method": "GET",
      ":scheme": "http",
      "x-user-id": "u1",
      "x-forwarded-for": "10.0.0.1",
      "x-forwarded-proto": "http",
      "x-envoy-internal": "true",
      "x-request-id": "2f6a7b1c-98ab-4a3b-8f0a-1f4f0a9d8d77",
    };
    this.headers = headerMap(Object.entries(headers));
  }

  headersOf(map) {
    return map === REQUEST ? this.headers : map === ANSWER ? this.answer.headers : undefined;
  }

  env() {
    let metrics = 0;
    return {
      proxy_log: () => {},
      // Of modules older than the one that reads both clocks in one way.
      proxy_get_current_time_nanoseconds: (to) =>
        this.memory.view.setBigUint64(to, BigInt(Date.now()) * 1_000_000n, true),
      proxy_set_tick_period_milliseconds: () => {},
      proxy_get_buffer_bytes: (kind, start, max, to, toLen) => {
        const whole = kind === 7 ? CONFIGURATION : this.answer?.body;
        return this.give(whole?.subarray(start, start + max), to, toLen);
      },
      proxy_get_header_map_pairs: (map, to, toLen) =>
        this.give(this.headersOf(map)?.whole, to, toLen),
      proxy_get_header_map_value: (map, name, nameLen, to, toLen) =>
        this.give(this.headersOf(map)?.get(this.string(name, nameLen)), to, toLen),
      proxy_replace_header_map_value: () => {},
      proxy_add_header_map_value: () => {},
      proxy_remove_header_map_value: () => {},
      proxy_get_property: () => NOT_FOUND,
      proxy_set_property: () => {},
      proxy_get_shared_data: (key, keyLen, to, toLen, toCas) => {
        const found = this.shared.get(Buffer.from(this.read(key, keyLen)).toString("latin1"));
        const status = this.give(found?.value, to, toLen);
        if (found) this.memory.view.setUint32(toCas, found.cas, true);
        return status;
      },
      proxy_set_shared_data: (key, keyLen, value, len, cas) => {
        const name = Buffer.from(this.read(key, keyLen)).toString("latin1");
        const found = this.shared.get(name);
        if (found && cas && found.cas !== cas) return CAS_MISMATCH;
        this.shared.set(name, { value: this.read(value, len), cas: (found?.cas ?? 0) + 1 });
        return OK;
      },
      proxy_register_shared_queue: (name, len, to) => this.memory.view.setUint32(to, QUEUE, true),
      proxy_enqueue_shared_queue: () => void (this.queued += 1),
      proxy_dequeue_shared_queue: (queue, to, toLen) => this.give(new Uint8Array(1), to, toLen),
      proxy_continue_stream: () => {},
      proxy_send_local_response: () => {},
      proxy_http_call: (cluster, clusterLen, headers, headersLen, body, bodyLen, t, tl, ms, to) => {
        const token = this.next++;
        this.call(token, this.decode(headers), Buffer.from(this.read(body, bodyLen)));
        this.memory.view.setUint32(to, token, true);
        return OK;
      },
      proxy_set_effective_context: () => {},
      proxy_define_metric: (kind, name, len, to) => this.memory.view.setUint32(to, ++metrics, true),
      proxy_record_metric: () => {},
      proxy_increment_metric: () => {},
    };
  }

  wasi() {
    return {
      clock_time_get: (clock, precision, to) => {
        const now = clock === 0 ? BigInt(Date.now()) * 1_000_000n : process.hrtime.bigint();
        this.memory.view.setBigUint64(to, now, true);
      },
      random_get: (to, len) => void randomFillSync(this.memory.bytes, to, len),
      environ_sizes_get: (count, len) => {
        this.memory.view.setUint32(count, 0, true);
        this.view.setUint32(len, 0, true);
      },
      environ_get: () => {},
    };
  }

  decode(at) {
    const count = this.memory.view.getUint32(at, true);
    let [length, start] = [at + 4, at + 4 + count * 8];
    const next = () => {
      const len = this.view.getUint32(length, true);
      const part = this.string(start, len);
      [length, start] = [length + 4, start + len + 1];
      return part;
    };
    return new Map(Array.from({ length: count }, () => [next(), next()]));
  }

  call(token, headers, body) {
    const checks = headers.get(":path") === "/v1/check";
    if (checks && this.replaying && this.known.has(body.length)) {
      this.replay.push([token, this.known.get(body.length)]);
      return;
    }
    const answered = ask(headers, body).then((answer) => {
      if (checks && this.replaying) this.known.set(body.length, answer);
      this.hear(token, answer);
    });
    // A poll is held until there is an edit, and there is none.
    if (!headers.has("if-none-match")) this.waiting.push(answered);
  }

  hear(token, answer) {
    this.answer = answer;
    const { headers, body } = answer;
    this.exports.proxy_on_http_call_response(ROOT, token, headers.size, body.length, 0);
    this.endTurn();
  }

  // As Envoy's event loop, which comes to the queue last.
  endTurn() {
    for (; this.queued; this.queued -= 1) this.exports.proxy_on_queue_ready(ROOT, QUEUE);
  }

  async tick() {
    this.exports.proxy_on_tick(ROOT);
    while (this.waiting.length) {
      const waiting = this.waiting;
      this.waiting = [];
      await Promise.all(waiting);
    }
  }

  begin() {
    const stream = this.next++;
    this.exports.proxy_on_context_create(stream, ROOT);
    this.exports.proxy_on_request_headers(stream, this.headers.size, 1);
    return stream;
  }

  end(stream) {
    this.exports.proxy_on_response_headers(stream, 5, 0);
    this.exports.proxy_on_delete(stream);
  }

  alone() {
    const stream = this.begin();
    this.endTurn();
    this.end(stream);
  }

  // Some requests in one turn, whose checks share a call.
  together() {
    const streams = Array.from({ length: TOGETHER }, () => this.begin());
    this.endTurn();
    while (this.replay.length) this.hear(...this.replay.shift());
    streams.forEach((stream) => this.end(stream));
  }

  // Nanoseconds for a request, and its host calls.
  measure() {
    const before = { ...this.calls };
    const began = process.hrtime.bigint();
    for (let n = 0; n < REQUESTS; n += this.replaying ? TOGETHER : 1) {
      if (this.replaying) this.together();
      else this.alone();
    }
    const ns = Number(process.hrtime.bigint() - began) / REQUESTS;
    const calls = Object.entries(this.calls).map(([name, count]) => [name, count - before[name]]);
    return { ns, calls: calls.filter(([, count]) => 2 * count >= REQUESTS) };
  }
}

function ask(headers, body) {
  const plain = [...headers].filter(([name]) => !name.startsWith(":"));
  const request = {
    host: "127.0.0.1",
    port: limiter,
    agent,
    method: headers.get(":method"),
    path: headers.get(":path"),
    headers: { ...Object.fromEntries(plain), "content-length": body.length },
  };
  return new Promise((resolve, reject) => {
    const sent = http.request(request, (answer) => {
      const parts = [];
      answer.on("data", (part) => parts.push(part));
      answer.on("end", () => {
        const status = [":status", String(answer.statusCode)];
        const headers = headerMap([status, ...Object.entries(answer.headers)]);
        resolve({ headers, body: new Uint8Array(Buffer.concat(parts)) });
      });
    });
    sent.on("error", reject);
    sent.end(body);
  });
}

const vms = process.argv.slice(4).map((file) => new Vm(file));
for (const vm of vms) await vm.start();
for (const [name, path] of PATHS) {
  const figures = vms.map(() => []);
  for (let round = -WARM_UP_ROUNDS; round < rounds; round += 1) {
    for (const [at, vm] of vms.entries()) {
      vm.replaying = path === "/strict";
      vm.setPath(path);
      const figure = vm.measure();
      // Only then is there time for grants to come, and for what is to be told.
      await vm.tick();
      if (round >= 0) figures[at].push(figure);
    }
  }
  for (const [at, vm] of vms.entries()) {
    const sorted = figures[at].map(({ ns }) => ns).sort((a, b) => a - b);
    const [least, median] = [0, Math.floor(sorted.length / 2)].map((n) => sorted[n].toFixed(0));
    const calls = figures[at].at(-1).calls.map(([call, count]) =>
      `${Math.round(count / REQUESTS)} ${call.replace("proxy_", "")}`);
    console.log(`${name.padEnd(20)} ${least.padStart(6)} ns least ${median.padStart(6)} median  ${vm.file}`);
    if (at === vms.length - 1) console.log(`${"".padEnd(20)} ${calls.join(", ")}`);
  }
}
process.exit(0);
