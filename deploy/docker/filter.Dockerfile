# The filter as an image for Istio: one layer with one file, /plugin.wasm.
#
#   cargo xtask wasm
#   docker build -f deploy/docker/filter.Dockerfile -t registry.example.com/rl/filter:0.1.0 .
#   docker push registry.example.com/rl/filter:0.1.0
FROM scratch
COPY target/filter.wasm /plugin.wasm
