-- What wrk sends: GET requests of users in turn, so that no single bucket and no single cache line makes the
-- figures; or one body, from a file, over and over:
--   wrk --script wrk.lua URL -- USERS
--   wrk --script wrk.lua URL -- FILE TYPE

local requests, last = {}, 0

init = function(args)
  if args[2] then
    local file = io.open(args[1], "rb")
    requests[1] = wrk.format("POST", nil, {["content-type"] = args[2]}, file:read("*a"))
    return
  end
  for n = 1, tonumber(args[1]) do
    requests[n] = wrk.format("GET", nil, {["x-user-id"] = "user-" .. n})
  end
end

request = function()
  last = last % #requests + 1
  return requests[last]
end

-- Requests, microseconds, p50, p99, answers of an error status, failures.
done = function(summary, latency)
  local errors = summary.errors
  print(string.format("figures %d %d %d %d %d %d", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), errors.status,
    errors.connect + errors.read + errors.write + errors.timeout))
end
