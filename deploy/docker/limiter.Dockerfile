# syntax=docker/dockerfile:1
# An image of the limiter and rlctl:
#
#   docker build -f deploy/docker/limiter.Dockerfile -t limiter .
#   docker run --rm -p 8090:8090 -e RL_STORE=redis://redis:6379 limiter
#   docker run --rm -e RL_STORE=redis://redis:6379 --entrypoint rlctl limiter list-limits

FROM rust:1.95-slim-trixie AS build
WORKDIR /src
COPY . .
# Cache mounts are not part of the image, so the programs are copied out.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release --package limiter --package ctl \
    && mkdir /out && cp target/release/limiter target/release/rlctl /out/

# No shell, no package manager: a C library, root certificates and the two programs.
FROM gcr.io/distroless/cc-debian13:nonroot
COPY --from=build /out/limiter /out/rlctl /usr/local/bin/
# In a container, clients cannot reach localhost.
ENV RL_LISTEN=0.0.0.0:8090 RL_ADMIN=0.0.0.0:8091 RL_LOG_FORMAT=json
EXPOSE 8090 8091
USER 65532:65532
ENTRYPOINT ["limiter"]
