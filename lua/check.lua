-- A batch of checks, each against several limits, decided in order in one call.
--
-- Twin of crates/algorithms/src/check.rs; lua/README.md is the calling convention.
--
-- KEYS  one bucket key per limit, in the order of the limits in ARGV.
-- ARGV  [1] the time in ms, or -1 for the server's TIME (production);
--       then for each check: flags (1 peek, 2 force), number of limits,
--       then for each limit 8 integers:
--         kind (below; plus 16 where the limit is only observed),
--         generation, cost, debit, limit, x, y, z
-- Reply integers: the time; then for each check: 0 denied, 1 allowed, 2 stale, 3 corrupt,
--       and for each limit 6: fits (0/1; 2 or 3 where this limit is the stale or corrupt one),
--         charged (or, if stale, the generation found), remaining,
--         retry_after (-1 never), reset_after, delay (ms)
--
-- include: lib/integers.lua
-- include: lib/state.lua
-- include: lib/bucket.lua
-- include: lib/token_bucket.lua
-- include: lib/gcra.lua
-- include: lib/leaky_bucket.lua
-- include: lib/window.lua
-- include: lib/fixed_window.lua
-- include: lib/sliding_window_log.lua
-- include: lib/sliding_window_buckets.lua
-- include: lib/sliding_window.lua

local DENIED, ALLOWED, STALE, BROKEN = 0, 1, 2, 3
local PEEK_AND_FORCE, FORCE, PEEK, OBSERVED = 3, 2, 1, 16
local NUMBERS_PER_LIMIT = 8

-- The algorithm of a kind. Only those that a call needs are made: most calls need one.
local function define(kind)
  if kind == 1 then
    return define_token_bucket() -- also a leaky bucket as a meter
  elseif kind == 2 then
    return define_gcra()
  elseif kind == 3 then
    return define_leaky_bucket_queue(define_token_bucket())
  elseif kind == 4 then
    return define_fixed_window(open_at_epoch)
  elseif kind == 5 then
    return define_fixed_window(open_at_first_request)
  elseif kind == 6 then
    return define_sliding_window_log()
  elseif kind == 7 then
    return define_sliding_window_buckets(true)
  elseif kind == 8 then
    return define_sliding_window_buckets(false)
  elseif kind == 9 then
    return define_sliding_window()
  end
  error('unknown kind of limit')
end

local defined = {}

-- Longer than reset_after, because TIME moves on while a script runs.
local TTL_MARGIN_MS = 1000
-- With an injected clock a real expiry must not take part.
local TTL_INJECTED = '86400000'

local now = tonumber(ARGV[1])
local injected = now >= 0
if not injected then
  local time = redis.call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end
if now > TIME_MAX_MS then
  now = TIME_MAX_MS
end

local function ttl(reset_after_ms)
  return injected and TTL_INJECTED or digits(reset_after_ms + TTL_MARGIN_MS)
end

-- The limit whose key is KEYS[k] and whose numbers start at ARGV[at].
local function parse(k, at)
  local kind = tonumber(ARGV[at])
  local observed = kind >= OBSERVED
  if observed then
    kind = kind - OBSERVED
  end
  local algorithm = defined[kind]
  if not algorithm then
    algorithm = define(kind)
    defined[kind] = algorithm
  end
  return {
    key = KEYS[k],
    algorithm = algorithm,
    observed = observed,
    generation = tonumber(ARGV[at + 1]),
    cost = tonumber(ARGV[at + 2]),
    debit = tonumber(ARGV[at + 3]),
    limit = tonumber(ARGV[at + 4]),
    x = tonumber(ARGV[at + 5]),
    y = tonumber(ARGV[at + 6]),
    z = tonumber(ARGV[at + 7]),
    seen = 0,
  }
end

local reply, filled = { now }, 1

local function answer(...)
  for i = 1, select('#', ...) do
    reply[filled + i] = (select(i, ...))
  end
  filled = filled + select('#', ...)
end

-- Finishes one limit, charged or left, and answers for it.
local function finish(l, charge)
  local algorithm = l.algorithm
  local delay = l.fits and algorithm.delay_ms(l) or 0
  local charged = charge and l.fits and l.cost or 0
  if charged > 0 then
    algorithm.charge(l, charged)
  end
  local retry = 0
  if not l.fits then
    retry = l.cost > l.limit and -1 or math.max(1, algorithm.wait_ms(l, l.cost))
  end
  local reset = algorithm.reset_after_ms(l)
  if charged > 0 or l.debited then
    algorithm.save(l, ttl(reset))
  elseif l.shifted then
    algorithm.save_shifted(l, ttl(reset))
  end
  answer(l.fits and 1 or 0, charged, algorithm.remaining(l), retry, reset, delay)
end

-- Answers a check that cannot be decided because of `culprit`; nothing was changed.
local function refuse(limits, culprit, status, generation)
  answer(status)
  for _, l in ipairs(limits) do
    if l == culprit then
      answer(status, generation, 0, 0, 0, 0)
    else
      answer(0, 0, 0, 0, 0, 0)
    end
  end
end

-- Decides one check on limits that are loaded.
local function decide(limits, peek)
  local allowed = true
  for _, l in ipairs(limits) do
    l.debited = l.debit > 0 and l.algorithm.debit(l, l.debit)
    l.fits = l.cost <= l.limit and l.algorithm.fits(l, l.cost)
    allowed = allowed and (l.fits or l.observed)
  end
  answer(allowed and ALLOWED or DENIED)
  for _, l in ipairs(limits) do
    finish(l, allowed and not peek)
  end
end

local function check(limits, peek, force)
  for _, l in ipairs(limits) do
    local problem = l.algorithm.load(l, now)
    if problem then
      return refuse(limits, l, BROKEN, 0)
    end
    if not force and l.generation < l.seen then
      return refuse(limits, l, STALE, l.seen)
    end
  end
  return decide(limits, peek)
end

local k, at = 0, 2
while ARGV[at] do
  local flags, limits = tonumber(ARGV[at]), {}
  local count = tonumber(ARGV[at + 1])
  at = at + 2
  for i = 1, count do
    k = k + 1
    limits[i] = parse(k, at)
    at = at + NUMBERS_PER_LIMIT
  end
  local force = flags >= FORCE
  check(limits, flags == PEEK or flags == PEEK_AND_FORCE, force)
end
return reply
