-- Gives units back to one bucket, as if the latest so many had not been charged.
--
-- Twin of Algorithm::credit in crates/algorithms; lua/README.md is the calling convention.
--
-- KEYS  the bucket; of a limit whose responses state their cost the key of its reservations, which stay open; of
--       a limit with a penalty the key of its denials, which is deleted
-- ARGV  [1] the time in ms, or -1 for the server's TIME (production)
--       [2] flags: 1 peek (change nothing), 2 force (the state may have a newer generation), 4 KEYS[2] is the key
--         of reservations
--       [3] kind [4] generation [5] units [6] limit [7] x [8] y [9] z: as for check.lua
--       [10] the limit's ttl for leases in ms, 0 if it has none
--       of a calendar window 6, of an adaptive limit (kind plus 1024) 4: see check.lua
-- Reply integers: [1] 0 nothing was used, 1 given back, 2 stale, 3 corrupt; [2] the time;
--       (stale also if the edges of a calendar window are not those of now)
--       [3] left before (or, if stale, the generation found), [4] left after, [5] reset_after (ms)

local now -- ms

-- include: lib/integers.lua
-- include: lib/state.lua

local UNUSED, CREDITED, STALE, BROKEN = 0, 1, 2, 3
local TTL_MARGIN_MS, TTL_INJECTED_MS = 1000, 86400000 -- as in lib/kept.lua
local call, injected = redis.call, ARGV[1] ~= '-1'

-- include: lib/algorithms.lua
-- include: lib/load.lua
-- include: lib/parameters.lua

-- include: lib/credit.lua

now = ARGV[1] + 0
if now < 0 then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
now = math.min(now, 2 ^ 52 - 1)

local flags, kind, units = ARGV[2] + 0, ARGV[3] + 0, ARGV[5] + 0
local adaptive = kind >= ADAPTIVE
kind = adaptive and kind - ADAPTIVE or kind
local peek, force, settles = flags % 2 == 1, flags % 4 >= 2, flags >= 4
local leased = ARGV[10] + 0 > 0 and kind <= 3 -- windows count what is leased as used
local l = {
  kind = kind,
  algorithm = algorithm_of(kind, leased),
  generation = ARGV[4] + 0,
  limit = ARGV[6] + 0,
  x = ARGV[7] + 0,
  y = ARGV[8] + 0,
  z = ARGV[9] + 0,
  lease = leased and { ttl = ARGV[10] + 0, want = 0, proxy = 0, settle = {} } or nil,
}
if adaptive then
  adaptive_rule(l, 11)
elseif kind == 11 then
  calendar(l, 11)
end
if load(l, KEYS[1]) then
  return { BROKEN, now, 0, 0, 0 }
end
if l.generation < l.seen and not force or l.outside then
  return { STALE, now, l.seen, 0, 0 }
end

-- The state that a credit writes has this limit's generation. Reservations with an older one would be void.
local keep_reservations = false
if settles and not peek then
  local function read()
    -- include: lib/reservations.lua
    l.costs = { secret = -1, settle = {} }
    read_reservations(l, KEYS[2])
    return store_reservations
  end
  keep_reservations = read()
end

local function left()
  return math.max(0, l.algorithm.room(l))
end

local before = left()
local penalty_key = KEYS[settles and 3 or 2]
local denials = penalty_key and held(redis.pcall('GET', penalty_key))
local till = type(denials) == 'string' and string.match(denials, ':(%d+):%d+$') or 0
local penalized = till + 0 > now
local credited = credit(l, units)
if denials and (credited or penalized) and not peek then
  call('DEL', penalty_key)
end
if credited and not peek then
  local reset = l.algorithm.reset_after_ms(l)
  local ttl = reset + TTL_MARGIN_MS + (l.algorithm.linger_ms or 0)
  keep(l, injected and TTL_INJECTED_MS or ttl)
  if keep_reservations then
    keep_reservations(l, true)
  end
end
if credited then
  as_read_next(l)
end
return { (credited or penalized) and CREDITED or UNUSED, now, penalized and 0 or before, left(), l.algorithm.reset_after_ms(l) }
