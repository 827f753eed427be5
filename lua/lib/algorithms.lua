-- algorithm_of(kind, leased) returns an algorithm, defined when first needed. Needs integers.lua,
-- state.lua and `now`. A limit l has key, kind, algorithm, generation, limit, x, y, z, and before
-- it is loaded seen = 0, shifted = false, debt = 0, at = now; a leased one also its lease
-- arguments; a calendar window its edges and debit_serial.
--
-- An algorithm is a table of functions of one limit l (which also holds its usage):
--   load(l, text)     reads the state at `now`; may set l.seen and l.shifted; returns CORRUPT or nil
--   room(l)           the largest cost that fits, negative where not even 0 does
--   charge(l, units)  adds units, at most up to the limit; returns whether any of it fitted
--   overcharge(l, units)  where defined, as charge, beyond the limit
--   admitted(l, units)    of a calendar window: as charge, for units admitted in the window l.debit_serial
--   wait_ms(l, cost)  from now until a cost that does not fit now fits
--   reset_after_ms(l) from now until nothing is used
-- Queues and requests in flight only:
--   delay_ms(l, cost) how long a request admitted now is held
--   take(l, cost)     replaces charge for a cost that fits; returns the name of its slot, 4 numbers
--   free(l, slots)    frees slots; returns whether that changed anything
--   missing(l)        of requests in flight: the slots to renew that are gone, as bits of 2 numbers
-- and, where the state is a string, encode(l); else save(l, ttl) and save_shifted(l, ttl).
-- Where units are leased, also
--   settle(l)         settles grants; returns whether that changed anything
--   grant(l)          takes units in advance; returns units, epoch, ttl
--   leased(l)         units leased out
-- and of a calendar window linger_ms, for how long a state counts after it is unused.
-- A call defines only those that it needs: mostly one.
local algorithm_of
local function define(kind, leased)
  local passes_bursts = kind == 10 -- a queue that is a token bucket or a GCRA
  kind = passes_bursts and 3 or kind
  -- Loads a state that is not the plain one of the algorithm `tag`: with slots or leases, or foreign.
  local function unplain(l, text, tag)
    local queue = tag == 'b' and string.match(text, '^(b%d+:%d+:%d+:%d+):q')
    if queue then
      return l.algorithm.load(l, queue)
    end
    if leased or not string.find(text, '^' .. tag .. '%d+:%d+:%d+:%d+:o?%d+:') then
      return foreign(l, tag)
    end
    l.algorithm = algorithm_of(l.kind, true)
    l.lease = { ttl = 0, want = 0, proxy = 0, settle = {} }
    return l.algorithm.load(l, text)
  end
  if kind <= 3 then
    -- include: lib/bucket.lua
    if kind == 2 then
      -- include: lib/gcra.lua
    else -- 1: a token bucket, or a leaky bucket as a meter
      -- include: lib/token_bucket.lua
    end
    if leased then
      -- include: lib/lease.lua
    end
    if kind == 3 then
      -- include: lib/leaky_bucket.lua
    end
    return M
  elseif kind <= 5 then -- 4: aligned to the epoch, 5: to the first request
    -- include: lib/fixed_window.lua
  elseif kind == 6 then
    -- include: lib/sliding_window_log.lua
  elseif kind <= 8 then -- 7: strict, 8: loose
    -- include: lib/sliding_window_buckets.lua
  elseif kind == 9 then
    -- include: lib/sliding_window.lua
  elseif kind == 11 then
    -- include: lib/calendar_window.lua
  elseif kind == 12 then
    -- include: lib/concurrency.lua
  end
  error('unknown kind of limit')
end

local defined = {}

function algorithm_of(kind, leased)
  local index = leased and kind + 100 or kind
  local algorithm = defined[index]
  if not algorithm then
    algorithm = define(kind, leased)
    defined[index] = algorithm
  end
  return algorithm
end
