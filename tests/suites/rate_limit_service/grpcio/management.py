"""A management server of rate limit configurations, as Envoy Gateway has one.

management.py PORT FOLDER: with TLS and client certificates from FOLDER, and the configurations of
FOLDER/configs.json, which are sent again when they change: {"version", "configs": [...]}. Prints what the
client answers.
"""

import json
import pathlib
import queue
import sys
import threading
import time
from concurrent import futures

import grpc
from google.protobuf import json_format

sys.path.insert(0, str(pathlib.Path(__file__).parent))
discovery, discovery_service = grpc.protos_and_services("discovery.proto")
conf = grpc.protos("rls_conf.proto")

TYPE_URL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
LOOK_S = 0.02
MIB = 1 << 20

port, folder = sys.argv[1], pathlib.Path(sys.argv[2])


def configured():
    """The version and the resources; `padding_mib` makes one large."""
    said = json.loads((folder / "configs.json").read_text())
    configs = []
    for config in said["configs"]:
        config["name"] += "x" * (config.pop("padding_mib", 0) * MIB)
        configs.append(json_format.ParseDict(config, conf.RateLimitConfig()))
    return said["version"], configs


class Server(discovery_service.AggregatedDiscoveryServiceServicer):
    def StreamAggregatedResources(self, requests, context):
        subscribed = queue.Queue()

        def read():
            for n, request in enumerate(requests):
                assert request.type_url == TYPE_URL, request
                if n == 0:
                    print(f"SUBSCRIBED {request.node.id} {request.version_info!r}", flush=True)
                    subscribed.put(())
                elif request.HasField("error_detail"):
                    message = request.error_detail.message.splitlines()[0]
                    print(f"NACK {request.response_nonce} {message}", flush=True)
                else:
                    print(f"ACK {request.response_nonce} {request.version_info}", flush=True)

        threading.Thread(target=read, daemon=True).start()
        subscribed.get()
        sent = None
        while context.is_active():
            try:
                version, configs = configured()
            except json.JSONDecodeError:
                version = sent  # being written
            if version != sent:
                response = discovery.DiscoveryResponse(
                    version_info=version, type_url=TYPE_URL, nonce=f"n{version}"
                )
                for config in configs:
                    response.resources.add().Pack(config)
                yield response
                sent = version
            time.sleep(LOOK_S)


pem = {name: (folder / f"{name}.pem").read_bytes() for name in ["ca", "cert", "key"]}
credentials = grpc.ssl_server_credentials([(pem["key"], pem["cert"])], pem["ca"], True)
options = [("grpc.max_send_message_length", 64 * MIB)]
server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), options=options)
discovery_service.add_AggregatedDiscoveryServiceServicer_to_server(Server(), server)
assert server.add_secure_port(f"localhost:{port}", credentials)
server.start()
print("READY", flush=True)
server.wait_for_termination()
