"""Calls the limiter with grpcio, as programs of others do.

client.py SCENARIO ADDRESS [CERTIFICATES]; the last line is `proved` where all went as expected.
"""

import pathlib
import sys
import threading
import time

import grpc

# The compiler finds files by the module path.
sys.path.insert(0, str(pathlib.Path(__file__).parent))
rls, rls_service = grpc.protos_and_services("rls.proto")
health, health_service = grpc.protos_and_services("health.proto")

OK = rls.RateLimitResponse.OK
OVER = rls.RateLimitResponse.OVER_LIMIT
TIMEOUT_S = 20


def request(*descriptors, **fields):
    built = [
        rls.RateLimitDescriptor(
            entries=[rls.RateLimitDescriptor.Entry(key=k, value=v) for k, v in entries.items()],
            **more,
        )
        for entries, more in descriptors
    ]
    return rls.RateLimitRequest(domain="shop", descriptors=built, **fields)


def ask(channel, *descriptors, token=None, **fields):
    stub = rls_service.RateLimitServiceStub(channel)
    metadata = [("authorization", f"Bearer {token}")] if token else []
    return stub.ShouldRateLimit(request(*descriptors, **fields), timeout=TIMEOUT_S, metadata=metadata)


def fails(code, call, *arguments, **fields):
    try:
        answer = call(*arguments, **fields)
    except grpc.RpcError as error:
        assert error.code() == code, error
        return error.details()
    raise AssertionError(f"expected {code}, not {answer}")


def checks_health(channel):
    stub = health_service.HealthStub(channel)

    def check(name):
        return stub.Check(health.HealthCheckRequest(service=name), timeout=TIMEOUT_S)

    for name in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"]:
        assert check(name).status == health.HealthCheckResponse.SERVING
    fails(grpc.StatusCode.NOT_FOUND, check, "other")


def answers(address, _certificates):
    """Right answers, and errors as statuses."""
    with grpc.insecure_channel(address) as channel:
        user = ({"user": "alice"}, {})
        for left in [1, 0]:
            answer = ask(channel, user)
            assert answer.overall_code == OK, answer
            (status,) = answer.statuses
            assert status.code == OK and status.limit_remaining == left, answer
            assert status.current_limit.name == "per-user", answer
            assert status.current_limit.requests_per_unit == 2, answer
            assert status.current_limit.unit == rls.YEAR, answer
            assert status.duration_until_reset.seconds > 0, answer
        answer = ask(channel, user, ({"other": "x"}, {}))
        assert answer.overall_code == OVER, answer
        assert [status.code for status in answer.statuses] == [OVER, OK], answer
        assert list(answer.dynamic_metadata["denied_by"]) == ["per-user"], answer
        own = rls.RateLimitDescriptor.RateLimitOverride(requests_per_unit=3, unit=rls.YEAR)
        answer = ask(channel, ({"any": "thing"}, {"limit": own}), hits_addend=3)
        assert answer.overall_code == OK and answer.statuses[0].limit_remaining == 0, answer
        looks = ({"user": "alice"}, {"hits_addend": {"value": 0}})
        assert ask(channel, looks).overall_code == OK
        used = ({"user": "alice"}, {"hits_addend": {"value": 1}})
        assert ask(channel, used).overall_code == OVER
        assert ask(channel, looks).overall_code == OVER
        gives = ({"user": "alice"}, {"hits_addend": {"value": 3}, "is_negative_hits": True})
        assert ask(channel, gives).overall_code == OK
        assert ask(channel, looks).statuses[0].limit_remaining == 2

        invalid = grpc.StatusCode.INVALID_ARGUMENT
        assert "at least one" in fails(invalid, ask, channel)
        assert fails(invalid, ask, channel, ({"": "x"}, {}))
        wrong = rls.RateLimitDescriptor.RateLimitOverride(requests_per_unit=3)
        assert "unit" in fails(invalid, ask, channel, ({"any": "x"}, {"limit": wrong}))
        too_many = [({"any": str(n)}, {}) for n in range(1025)]
        assert "1024" in fails(invalid, ask, channel, *too_many)
        too_large = ({"any": "x" * 300_000}, {})
        fails(grpc.StatusCode.RESOURCE_EXHAUSTED, ask, channel, too_large)
        other = channel.unary_unary("/shop.Other/Call")
        fails(grpc.StatusCode.UNIMPLEMENTED, other, b"", timeout=TIMEOUT_S)
        compressed = rls_service.RateLimitServiceStub(channel).ShouldRateLimit
        fails(
            grpc.StatusCode.UNIMPLEMENTED,
            compressed,
            request(({"user": "x" * 1000}, {})),
            timeout=TIMEOUT_S,
            compression=grpc.Compression.Gzip,
        )
        checks_health(channel)


def secured(address, certificates):
    """TLS with a token, which health checks do not need."""
    folder = pathlib.Path(certificates)
    credentials = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes())
    with grpc.secure_channel(address, credentials) as channel:
        user = ({"user": "alice"}, {})
        for wrong in [None, "wrong"]:
            fails(grpc.StatusCode.UNAUTHENTICATED, ask, channel, user, token=wrong)
        assert ask(channel, user, token="a-token-of-the-suite").overall_code == OK
        checks_health(channel)


def mutual(address, certificates):
    """TLS with a client certificate, without which there is no connection."""
    folder = pathlib.Path(certificates)
    ca, key, chain = ((folder / name).read_bytes() for name in ["ca.pem", "key.pem", "cert.pem"])
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(ca)) as channel:
        fails(grpc.StatusCode.UNAVAILABLE, ask, channel, ({"user": "alice"}, {}))
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, chain)) as channel:
        assert ask(channel, ({"user": "alice"}, {})).overall_code == OK
        checks_health(channel)


def aged(address, _certificates):
    """Connections end at an age: no call is lost, and none is charged twice."""
    counted = {"counted": "x"}
    with grpc.insecure_channel(address) as channel:
        states = []
        channel.subscribe(states.append, try_to_connect=True)
        deadline = time.monotonic() + TIMEOUT_S
        calls, failures = [], []

        def connections():
            return states.count(grpc.ChannelConnectivity.READY)

        def call():
            while connections() < 5 and time.monotonic() < deadline:
                try:
                    calls.append(ask(channel, (counted, {})))
                except grpc.RpcError as error:
                    failures.append(error)

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        assert connections() >= 5, states
        (status,) = ask(channel, (counted, {"hits_addend": {"value": 0}})).statuses
        assert status.limit_remaining == 1_000_000 - len(calls), (status, len(calls))


def watched(address, _certificates):
    """Prints the states of the service, and how the watch ends."""
    with grpc.insecure_channel(address) as channel:
        stub = health_service.HealthStub(channel)
        unknown = stub.Watch(health.HealthCheckRequest(service="other"), wait_for_ready=True)
        assert next(unknown).status == health.HealthCheckResponse.SERVICE_UNKNOWN
        watch = stub.Watch(health.HealthCheckRequest(), wait_for_ready=True)
        try:
            for answer in watch:
                print(health.HealthCheckResponse.ServingStatus.Name(answer.status), flush=True)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error
        fails(grpc.StatusCode.UNAVAILABLE, lambda: next(unknown))


scenario, address, certificates = (sys.argv + [""])[1:4]
{f.__name__: f for f in [answers, secured, mutual, aged, watched]}[scenario](address, certificates)
print("proved")
