// Runs a test program that was compiled to wasm32-wasip1, under Node's WASI.
import { readFile } from "node:fs/promises";
import { WASI } from "node:wasi";

const [, , program, ...args] = process.argv;
const wasi = new WASI({
  version: "preview1",
  args: [program, ...args],
  env: process.env,
  // Tests read files of the checkout by absolute path.
  preopens: { "/": "/" },
  returnOnExit: true,
});
const { instance } = await WebAssembly.instantiate(
  await readFile(program),
  wasi.getImportObject(),
);
process.exitCode = wasi.start(instance);
