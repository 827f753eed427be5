-- A batch of checks, each against several limits, decided in order in one call.
--
-- Twin of crates/algorithms/src/check.rs; lua/README.md is the calling convention.
--
-- KEYS  for each check: one bucket key per limit, in the order of the limits in ARGV; then for each limit that
--       has reservations the key of those, and for each that has a penalty the key of its denials.
-- ARGV  one string of integers, each a double of 8 bytes, little-endian (struct's `<d`):
--       the time in ms, or -1 for the server's TIME (production);
--       the number of forms; then for each form: flags (1 peek, 2 force, 4 debits are charged beyond
--         the limit, 8 debits are given back, and the check is a peek, 16 it is denied whatever these limits say;
--         and 32 for each ms that the caller waits for permits), number of limits,
--         then for each limit 8:
--           kind (below; plus 16 where the limit is only observed, plus 32 where it is leased, plus 528
--             where it is only observed, but the check is denied where it fits none of these),
--           generation, cost, debit, limit, x, y, z
--         and where it is leased: ttl, units wanted, mark of the proxy, number of settlements,
--           and for each of these 3: epoch, spent, returned;
--         and where slots of it are freed (kind plus 64): their number, and for each 5: start in ms,
--           parts beyond it, since, turn, units; of requests in flight (kind 12) stamp, secret, ttl, 0, and
--           1 to free, 2 to renew or 3 to enter it again, 4, 5 or 6 to free it after an answer that was in time,
--           late or slow, 7 to free it because its request was not let in;
--         and where its responses state the cost (kind plus 128): the secret of the reservation of the cost,
--           or -1 for none, or -2 to add up the open ones; the number of settlements, and for each 4:
--           number, secret, units reserved, true cost;
--         and where it has a penalty (kind plus 256) 6: denials that begin it, the time within which they
--           count, ms, its first length, ms, how many times longer the next is, or 1, its longest length, ms,
--           and reported denials, or less than 0 where a denial of this check does not count: -1 minus them;
--         and of an adaptive limit (kind plus 1024; its limit is the most slots) 4: the slots that it starts
--           with, the fewest, the latency, ms, and the share of answers within it, per mille;
--         and of a calendar window 6: the label of the window that the debit was admitted in, or 0, and
--           the ends of five windows, the first of which has the label y and starts at z, in ms
--       then for each check: the number of its form, from 1
-- Reply, packed in the same way: the time; then for each check: 0 denied, 1 allowed, 2 stale, 3 corrupt, 4 charged,
--       and for each limit 6: fits (0/1; 2 or 3 where this limit is the stale or corrupt one),
--         charged (or, if stale, the generation found), remaining,
--         retry_after (-1 never), reset_after, delay (ms)
--       and where it is leased 4: units granted, their epoch, their ttl, all units leased out;
--       and of a queue or of requests in flight 4: the name of the slot, or four zeros; if nothing was
--         charged, the first two have a bit for each slot to renew that is gone, 50 in each;
--       and of an adaptive limit 1: the limit, in thousandths of a slot; in a peek 13 more, the rest of its state
--         (lib/adaptive.lua), or zeros;
--       and where the responses state the cost 4: the number of the reservation made, units given back, units
--         charged beyond what was reserved, and units reserved now, if the check added them up;
--       and where it has a penalty 5: ms until that ends, or 0; denials that count; 1 if this check began it;
--         the length of the next, ms; and where they grow, ms until one is as short as the first again, or 0;
--       of a check that was charged (4: every limit in full, none with delays, leases, stated costs or a
--         penalty) for each limit only 2: remaining, reset_after
--
-- Redis spends time on each argument and each item of a reply: as decimal arguments and an array, these
-- numbers took a third of the time of a lone check.
--
-- Numbers may go to redis.call unformatted: it writes 17 digits.

local call, unpacked, numbers = redis.call, struct.unpack, ARGV[1]
local now, form_count, place = unpacked('<dd', numbers) -- ms, the time of every check in this call; forms; the next byte
local injected = now >= 0
-- Buckets whose windows end together, or that an edit made end together, would be removed in one round, which
-- holds up every check. So a bucket is kept longer than its usage counts, by a share of that time between 0
-- and an eighth that differs from call to call; by an hour at most.
local spread, SPREAD_MAX_MS = 0, 8 * 3600000
if not injected then
  local time = call('TIME')
  local micros = time[2] + 0
  spread = micros / 8e6
  now = time[1] * 1000 + (micros - micros % 1000) / 1000
end
if now >= 2 ^ 52 then
  now = 2 ^ 52 - 1
end

-- Added to reset_after, because TIME moves on while a script runs.
local TTL_MARGIN_MS = 1000
-- With an injected clock, keys must not expire by the real one.
local TTL_INJECTED_MS = 86400000

local DENIED, ALLOWED, STALE, BROKEN, CHARGED = 0, 1, 2, 3, 4
local PEEK, FORCE, REPORTED, GIVEN_BACK, DENIED_ANYWAY, PATIENCE = 1, 2, 4, 8, 16, 32
local OBSERVED, LEASED, FREEING, PRICED, PENALIZING, TOGETHER = 16, 32, 64, 128, 256, 512
local COUNT_OPEN = -2
local PENALTY_ARGUMENTS = 6
local NUMBERS_PER_LIMIT, LEASE_FIELDS, SLOT_FIELDS, COST_FIELDS, PENALTY_FIELDS = 8, 4, 4, 4, 5
local ADAPTIVE_FIELDS = 14 -- of a peek; else 1

local reply, filled = { now, 0, 0, 0, 0, 0, 0, 0 }, 1 -- with room for one check of one limit
-- include: lib/integers.lua
-- include: lib/plain.lua

if place > #numbers and filled == 4 then -- nearly all calls
  return struct.pack('<dddd', now, reply[2], reply[3], reply[4])
end

local function packed_reply()
  local parts = {}
  for i = 1, filled, 200 do
    local last = math.min(i + 199, filled)
    parts[#parts + 1] = struct.pack('<' .. string.rep('d', last - i + 1), unpack(reply, i, last))
  end
  return table.concat(parts)
end

if place > #numbers then
  return packed_reply()
end

-- From here on, ARGV is the list of arguments; `at` is the next check.
local at, count = (place + 7) / 8, #numbers / 8
local at_once = math.min(count, 200)
local ARGV = { unpacked('<' .. string.rep('d', at_once), numbers) }
ARGV[at_once + 1] = nil -- the position after them
for i = at_once + 1, count do
  ARGV[i] = unpacked('<d', numbers, 8 * i - 7)
end

-- include: lib/state.lua

-- include: lib/algorithms.lua

-- Returns the lease arguments of a limit from ARGV[at] on, and the position after them.
local function parse_lease(at)
  local settle, last = {}, at + 3 + 3 * ARGV[at + 3]
  for i = at + 4, last do
    settle[#settle + 1] = ARGV[i] + 0
  end
  return { ttl = ARGV[at] + 0, want = ARGV[at + 1] + 0, proxy = ARGV[at + 2] + 0, settle = settle }, last + 1
end

-- As parse_lease, for reservations.
local function parse_costs(at)
  local settle, last = {}, at + 1 + 4 * ARGV[at + 1]
  for i = at + 2, last do
    settle[#settle + 1] = ARGV[i] + 0
  end
  return { secret = ARGV[at] + 0, settle = settle, given_back = 0, excess = 0 }, last + 1
end

-- include: lib/parameters.lua

-- As parse_lease, for all numbers of a limit; it has no bucket yet.
local function parse(at)
  local kind, next_at, lease, free = ARGV[at] + 0, at + NUMBERS_PER_LIMIT, nil, nil
  local adaptive = kind >= ADAPTIVE
  if adaptive then
    kind = kind - ADAPTIVE
  end
  local together = kind >= TOGETHER
  if together then
    kind = kind - TOGETHER
  end
  local penalizing = kind >= PENALIZING
  if penalizing then
    kind = kind - PENALIZING
  end
  local priced = kind >= PRICED
  if priced then
    kind = kind - PRICED
  end
  local frees = kind >= FREEING
  if frees then
    kind = kind - FREEING
  end
  if kind >= LEASED then
    kind = kind - LEASED
    lease, next_at = parse_lease(next_at)
  end
  if frees then
    local last = next_at + 5 * ARGV[next_at]
    free = {}
    for i = next_at + 1, last do
      free[#free + 1] = ARGV[i] + 0
    end
    next_at = last + 1
  end
  local costs
  if priced then
    costs, next_at = parse_costs(next_at)
  end
  local penalty
  if penalizing then
    local after, within, first = ARGV[next_at], ARGV[next_at + 1], ARGV[next_at + 2]
    local grow, most, reported = ARGV[next_at + 3], ARGV[next_at + 4], ARGV[next_at + 5]
    penalty = { after = after + 0, within = within + 0, first = first + 0, grow = grow + 0, most = most + 0 }
    penalty.counts = reported >= 0
    penalty.reported = penalty.counts and reported + 0 or -1 - reported
    next_at = next_at + PENALTY_ARGUMENTS
  end
  local observed = kind >= OBSERVED
  if observed then
    kind = kind - OBSERVED
  end
  local limit = {
    key = false, -- of the current bucket
    keep = false, -- whether the next check uses it as loaded
    px = false, -- time to live of a kept, unwritten state, ms
    algorithm = algorithm_of(kind, lease ~= nil),
    kind = kind,
    observed = observed,
    generation = ARGV[at + 1] + 0,
    cost = ARGV[at + 2] + 0,
    debit = ARGV[at + 3] + 0,
    limit = ARGV[at + 4] + 0,
    x = ARGV[at + 5] + 0,
    y = ARGV[at + 6] + 0,
    z = ARGV[at + 7] + 0,
    seen = 0, -- the generation found in the state
    shifted = false, -- the state after a far step back of the clock
    fits = false,
    debt = 0, -- of a bucket
    at = now,
    asked = lease ~= nil,
  }
  -- A field that is nil would take its place in the table, too.
  if lease then
    limit.lease = lease
  end
  if costs then
    limit.costs = costs
  end
  if penalty then
    limit.penalty = penalty
  end
  if free then
    limit.freed_slots = free
  end
  if together then
    limit.together = true
  end
  if adaptive then
    next_at = adaptive_rule(limit, next_at)
  elseif kind == 11 then -- of a calendar window
    next_at = calendar(limit, next_at)
  end
  return limit, next_at
end

-- As parse_lease, for a form.
local function parse_form(at)
  local flags, count = ARGV[at] + 0, ARGV[at + 1] + 0
  local form = {
    at = at,
    count = count,
    keys = count,
    peek = flags % 2 == PEEK,
    force = flags % 4 >= FORCE,
    reported = flags % 8 >= REPORTED,
    given_back = flags % 16 >= GIVEN_BACK,
    refused = flags % PATIENCE >= DENIED_ANYWAY,
    patience = math.floor(flags / PATIENCE),
    used = false, -- by a check that left fields in it
  }
  local next_at = at + 2
  for i = 1, count do
    form[i], next_at = parse(next_at)
    if form[i].costs then
      form.keys = form.keys + 1
      form[i].costs.nth = form.keys
    end
    if form[i].penalty then
      form.keys = form.keys + 1
      form[i].penalty.nth = form.keys
    end
  end
  return form, next_at
end

-- include: lib/load.lua
-- include: lib/kept.lua

-- The functions that give units back, defined when first needed.
local credit, keep_list
local function define_credit()
  if not credit then
    local function define()
      -- include: lib/credit.lua
      return credit, keep
    end
    credit, keep_list = define()
  end
end

-- The functions for reservations, defined when first needed.
local R
local function define_reservations()
  if not R then
    -- include: lib/reservations.lua
    R = {
      read = read_reservations,
      settle = settle_costs,
      reserve = reserve,
      store = store_reservations,
      open = open_units,
    }
  end
end

-- The functions for penalties, defined when first needed.
local P
local function define_penalties()
  if not P then
    -- include: lib/penalty.lua
    P = { read = read_penalty, count = count_denials, next = next_length, anew = anew_in, store = store_penalty }
  end
end

local limits -- the form of the current check

-- Charges the units that were used without a check, or gives them back; returns whether anything changed.
local function debit(l)
  if limits.given_back then
    define_credit()
    return credit(l, l.debit)
  end
  local algorithm = l.algorithm
  local add = limits.reported and algorithm.overcharge or algorithm.admitted or algorithm.charge
  return add(l, l.debit)
end

local in_full -- whether the current check is answered as CHARGED
local repeated -- whether its caller repeats it, so that it counts no denials

-- Whether the caller of the current check, which is denied, waits for it to pass.
local function is_repeated(count)
  local longest = 0
  for i = 1, count do
    local l = limits[i]
    local wait = 0
    if l.cost > l.limit then
      wait = 2 ^ 53
    elseif not l.fits and l.kind ~= 12 then -- a slot of a request in flight may be freed at any moment
      wait = math.max(1, l.algorithm.wait_ms(l, l.cost))
    end
    if l.penalty then
      wait = math.max(wait, l.penalty.till - now)
    end
    longest = l.observed and longest or math.max(longest, wait)
  end
  return longest <= limits.patience
end

-- Charges one limit if `charge`, stores its state, and adds its reply.
local function finish(l, charge)
  local algorithm, fits, cost, penalty = l.algorithm, l.fits, l.cost, l.penalty
  charge = charge and not (penalty and penalty.till > now)
  local delay, charged, retry = 0, 0, 0
  local take, start, parts, since, turn = algorithm.take, 0, 0, 0, 0
  if not fits then
    retry = cost > l.limit and -1 or math.max(1, algorithm.wait_ms(l, cost))
  else
    delay = take and algorithm.delay_ms(l, cost) or 0
    if charge and cost > 0 then
      charged = cost
      if take then
        start, parts, since, turn = take(l, cost)
      else
        algorithm.charge(l, cost)
      end
    end
  end
  local number, costs = 0, l.costs
  if charged > 0 and costs and costs.secret >= 0 then
    number = R.reserve(l, cost)
  end
  local granted, epoch, ttl = 0, 0, 0
  if l.lease and charge and fits and algorithm.grant then
    granted, epoch, ttl = algorithm.grant(l)
  end
  local reset = algorithm.reset_after_ms(l)
  if l.debited and limits.given_back and l.kind >= 6 and l.kind <= 8 then
    keep_list(l, injected and TTL_INJECTED_MS or reset + TTL_MARGIN_MS)
    if costs then
      R.store(l, true)
    end
  elseif charged > 0 or l.debited or l.settled or granted > 0 or l.freed then
    store(l, true, reset)
    if costs then
      R.store(l, true)
    end
  elseif l.shifted then
    store(l, false, reset)
    if costs then
      R.store(l, false)
    end
  elseif costs and costs.settled then
    R.store(l, false)
  end
  local room = algorithm.room(l)
  room = room > 0 and room or 0
  if penalty then
    if penalty.counts and not (fits or limits.peek or repeated or cost > l.limit) then
      P.count(penalty, 1)
    end
    if penalty.changed then
      P.store(penalty)
    end
    local left = penalty.till - now
    if left > 0 then
      fits, room, delay, reset = false, 0, 0, math.max(reset, left)
      retry = retry < 0 and retry or math.max(retry, left)
    end
  end
  if in_full then
    reply[filled + 1], reply[filled + 2] = room, reset
    filled = filled + 2
    return
  end
  reply[filled + 1] = fits and 1 or 0
  reply[filled + 2] = charged
  reply[filled + 3] = room
  reply[filled + 4] = retry
  reply[filled + 5] = reset
  reply[filled + 6] = delay
  filled = filled + 6
  if l.asked then
    reply[filled + 1], reply[filled + 2], reply[filled + 3] = granted, epoch, ttl
    reply[filled + 4] = algorithm.leased and algorithm.leased(l) or 0
    filled = filled + LEASE_FIELDS
  end
  if take then
    if charged == 0 and algorithm.missing then
      start, parts = algorithm.missing(l)
    end
    reply[filled + 1], reply[filled + 2], reply[filled + 3], reply[filled + 4] = start, parts, since, turn
    filled = filled + SLOT_FIELDS
  end
  if l.adaptive then
    filled = filled + 1
    reply[filled] = l.milli
    local found = limits.peek and { algorithm.read_mark(l.found) } -- begins with the 'a'
    for i = 2, found and ADAPTIVE_FIELDS or 1 do
      filled = filled + 1
      reply[filled] = found[i + 1] or 0
    end
  end
  if costs then
    reply[filled + 1], reply[filled + 2], reply[filled + 3] = number, costs.given_back, costs.excess
    reply[filled + 4] = costs.secret == COUNT_OPEN and R.open(l) or 0
    filled = filled + COST_FIELDS
  end
  if penalty then
    reply[filled + 1], reply[filled + 2] = math.max(0, penalty.till - now), penalty.count
    reply[filled + 3] = penalty.begun and 1 or 0
    reply[filled + 4], reply[filled + 5] = P.next(penalty), P.anew(penalty)
    filled = filled + PENALTY_FIELDS
  end
end

-- Replies to a check that cannot be decided because of limit `culprit`; nothing was changed.
local function refuse(count, culprit, status, generation)
  filled = filled + 1
  reply[filled] = status
  for i = 1, count do
    for field = 1, 6 do
      reply[filled + field] = 0
    end
    if i == culprit then
      reply[filled + 1], reply[filled + 2] = status, generation
    elseif i > culprit then
      limits[i].keep = false -- it was not read, and the next check may use another bucket
    end
    filled = filled + 6
    local more = (limits[i].asked and LEASE_FIELDS or 0) + (limits[i].algorithm.take and SLOT_FIELDS or 0)
      + (limits[i].costs and COST_FIELDS or 0) + (limits[i].penalty and PENALTY_FIELDS or 0)
      + (limits[i].adaptive and (limits.peek and ADAPTIVE_FIELDS or 1) or 0)
    for field = 1, more do
      reply[filled + field] = 0
    end
    filled = filled + more
  end
end

-- Decides the check whose buckets start at KEYS[first]; `again`: the next check has the same form.
local function check(count, first, again, peek, force)
  for i = 1, count do
    local l = limits[i]
    if load(l, KEYS[first + i - 1], again and not l.costs and KEYS[first + limits.keys + i - 1]) then
      return refuse(count, i, BROKEN, 0)
    end
    if l.generation < l.seen and not force or l.outside then
      return refuse(count, i, STALE, l.seen)
    end
  end
  local allowed = not limits.refused
  local grouped, fits_one = false, false -- whether there are limits with TOGETHER, and one of them is open
  in_full = allowed and not peek
  for i = 1, count do
    local l = limits[i]
    local algorithm = l.algorithm
    if l.asked or l.freed_slots then
      l.settled = l.asked and algorithm.settle and algorithm.settle(l)
      l.freed = l.freed_slots and algorithm.free and algorithm.free(l, l.freed_slots)
    end
    if l.costs then
      define_reservations()
      R.read(l, KEYS[first + l.costs.nth - 1])
      l.settled = R.settle(l) or l.settled
    end
    if l.debit > 0 then
      l.debited = debit(l)
    end
    l.fits = l.cost <= l.limit and l.cost <= algorithm.room(l)
    local open = l.fits
    if l.penalty then
      define_penalties()
      P.read(l.penalty, KEYS[first + l.penalty.nth - 1])
      open = open and l.penalty.till <= now
    end
    allowed = allowed and (open or l.observed)
    if l.together then
      grouped, fits_one = true, fits_one or open
    end
    in_full = in_full and open and not l.asked and not l.costs and not l.penalty and not algorithm.delay_ms
  end
  allowed = allowed and (fits_one or not grouped)
  repeated = not allowed and limits.patience > 0 and is_repeated(count)
  filled = filled + 1
  reply[filled] = in_full and CHARGED or allowed and ALLOWED or DENIED
  for i = 1, count do
    finish(limits[i], allowed and not peek)
  end
end

local first = 3
forms = {}
for i = 1, ARGV[2] + 0 do
  forms[i], first = parse_form(first)
end
at = math.max(at, first)
while ARGV[at] do
  local number = ARGV[at] + 0
  limits = forms[number]
  if limits.used then
    limits = parse_form(limits.at)
    forms[number] = limits
  end
  local count, again = limits.count, ARGV[at + 1] == ARGV[at]
  check(count, k, again, limits.peek, limits.force)
  k, at = k + limits.keys, at + 1
  if unwritten then
    write(limits, false)
  end
  if ARGV[at] then
    -- Leases, reservations, lists, sets and credits leave fields in the form, which is parsed again if it is used again.
    for i = 1, count do
      local l = limits[i]
      if l.lease or l.costs or not l.algorithm.encode or limits.given_back then
        write(limits, true)
        limits.used = true
        break
      end
    end
  end
end
return packed_reply()
