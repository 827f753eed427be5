// node.cjs LEFT_OUT EXPORT...: runs tests of the module beside it. `wasm-bindgen-test` captures a
// test's output by these handlers, and prints what failed.
const handlers = {};
for (const method of ["debug", "log", "info", "warn", "error"]) {
  const original = console[method];
  console[method] = (...args) => handlers[method]?.(args);
  global[`__wbgtest_og_console_${method}`] = original;
}
global.__wbg_test_invoke = (test) => test();

const wasm = require("./program.js");
for (const method of ["debug", "log", "info", "warn", "error"])
  handlers[method] = wasm[`__wbgtest_console_${method}`];

const [, , leftOut, ...tests] = process.argv;
const context = new wasm.WasmBindgenTestContext(false);
context.include_ignored(false);
context.filtered_count(Number(leftOut));
context.run(tests.map((name) => wasm.__wasm[name])).then(
  (passed) => process.exit(passed ? 0 : 1),
  (error) => {
    global.__wbgtest_og_console_error(error);
    process.exit(1);
  },
);
