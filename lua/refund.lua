-- Undoes charges of a check that was denied afterwards by a limit in another slot of a Cluster.
--
-- Twin of Algorithm::refund in crates/algorithms; lua/README.md is the calling convention.
-- What has drained or expired since is not refunded: a bucket gives back what has not drained, a
-- window what it still counts, a queue the part of the slot that has not passed. A charge is refunded
-- at most once: a caller that got no reply does not retry. A refund never lets a bucket admit more
-- than if the check had not been made.
--
-- KEYS  one bucket key per charge
-- ARGV  [1] the time in ms, or -1 for the server's TIME (production);
--       then for each charge 13 integers:
--         kind, generation, units, the time of the charge, limit, x, y, z,
--         the ttl of the limit's leases (0: it does not lease), and of a queue the name of the slot
--         (start in ms, parts beyond it, since, turn; else four times 0);
--         of a calendar window 6 more, of an adaptive limit (kind plus 1024) 4 more: see check.lua
-- Reply integers: the time; then for each charge 3: whether something was refunded (0/1),
--       remaining, reset_after (ms)

local now -- ms

-- include: lib/integers.lua
-- include: lib/state.lua

local NUMBERS_PER_CHARGE = 13

-- include: lib/algorithms.lua
-- include: lib/load.lua
-- include: lib/parameters.lua

-- Loads the limit of KEYS[k], whose numbers start at ARGV[at]; nil if its state is corrupt or the
-- edges of its calendar windows are not those of now. Also returns the position after its numbers.
local function read(k, at)
  local kind, ttl = ARGV[at] + 0, ARGV[at + 8] + 0
  local adaptive = kind >= ADAPTIVE
  kind = adaptive and kind - ADAPTIVE or kind
  local l = {
    kind = kind,
    algorithm = algorithm_of(kind, ttl > 0),
    generation = ARGV[at + 1] + 0,
    limit = ARGV[at + 4] + 0,
    x = ARGV[at + 5] + 0,
    y = ARGV[at + 6] + 0,
    z = ARGV[at + 7] + 0,
    lease = ttl > 0 and { ttl = ttl, want = 0, proxy = 0, settle = {} } or nil,
    slot = { ARGV[at + 9] + 0, ARGV[at + 10] + 0, ARGV[at + 11] + 0, ARGV[at + 12] + 0, ARGV[at + 2] + 0 },
  }
  local last = at + NUMBERS_PER_CHARGE
  if adaptive then
    last = adaptive_rule(l, last)
  elseif kind == 11 then
    last = calendar(l, last)
  end
  if load(l, KEYS[k]) or l.outside then
    l = nil
  end
  return l, last
end

-- include: lib/refund.lua

now = ARGV[1] + 0
if now < 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
now = math.min(now, 2 ^ 52 - 1)

local reply, at = { now }, 2
for k = 1, #KEYS do
  local units, charged_at = ARGV[at + 2] + 0, ARGV[at + 3] + 0
  local l, next_at = read(k, at)
  local taken = 0
  -- Under another generation, the bucket was reset or its limit was edited.
  if l and l.seen == l.generation and charged_at <= now and not l.shifted then
    taken = refund(l, units, charged_at) and 1 or 0
    l = read(k, at)
  end
  reply[#reply + 1] = taken
  reply[#reply + 1] = l and math.max(0, l.algorithm.room(l)) or 0
  reply[#reply + 1] = l and l.algorithm.reset_after_ms(l) or 0
  at = next_at
end
return reply
