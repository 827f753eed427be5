-- Sliding window log. Twin of crates/algorithms/src/sliding_window_log.rs.
--
-- State: a list of "<ms>:<units>:<running total>", oldest first, one for all
-- admissions of a millisecond. The total, which wraps, lets bisection find what is
-- used and when enough of it is forgotten. The newest entry ends in ":<generation>",
-- which is removed when another follows.
--
-- w: limit (N), x (W in ms), at (now, or the newest entry's time if later),
--    shift (what to take off an entry's time), newest (entry), length (of the list),
--    first (position of the first entry that counts), forgotten (total before it),
--    stored (units that count), added (units of this call), foreign (whether the key has another algorithm's state)

local TOTAL_WRAP = 1000000 -- above the 100,000 units that a log can hold
local CHUNK = 1000 -- unpack() has a limit
local ENTRY = '%.0f:%.0f:%.0f'
local NEWEST = '%.0f:%.0f:%.0f:%.0f'

-- The entry at a position from 0 (or from the end, if negative); nil if there is none.
local function entry(w, position)
  local text = held(redis.pcall('LINDEX', w.key, position))
  if not text then
    return nil
  end
  if type(text) ~= 'string' then
    w.foreign = true
    return nil, foreign(w)
  end
  local at, units, total, generation = string.match(text, '^(%-?%d+):(%d+):(%d+):?(%d*)$')
  if not at or (generation == '' and position < 0) then
    return nil, CORRUPT
  end
  at, units, total, generation = at + 0, units + 0, total + 0, (tonumber(generation) or 0)
  if not sound(math.abs(at) + units + total + generation, 1) then
    return nil, CORRUPT
  end
  return { at = at - w.shift, units = units, total = total, generation = generation }
end

-- Units admitted after the total `since`, up to and including the total `upto`.
local function between(since, upto)
  return (upto - since) % TOTAL_WRAP
end

-- The first position in [low, high) whose entry is wanted; `high` if none is.
-- All entries after a wanted one are wanted.
local function bisect(w, low, high, wanted)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = entry(w, middle)
    if found and wanted(found) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- Finds the first entry that counts, and the units from it on.
local function find_live(w)
  local horizon = w.at - w.x
  if w.newest.at <= horizon then
    w.first = w.length
    return
  end
  local head, problem = entry(w, 0)
  if head and head.at <= horizon then
    w.first = bisect(w, 1, w.length, function(e)
      return e.at > horizon
    end)
    head, problem = entry(w, w.first)
  end
  if not head then
    return problem or CORRUPT
  end
  w.forgotten = (head.total - head.units) % TOTAL_WRAP
  w.stored = between(w.forgotten, w.newest.total)
end

local function load(w)
  w.shift, w.first, w.length, w.forgotten, w.stored, w.added, w.foreign = 0, 0, 0, 0, 0, 0, false
  local newest, problem = entry(w, -1)
  if not newest then
    return problem
  end
  w.newest, w.seen = newest, newest.generation
  if newest.at - now > w.x then
    w.shift, w.shifted = newest.at - now, true
    newest.at = now
  end
  w.at = math.max(newest.at, now)
  w.length = redis.call('LLEN', w.key)
  return find_live(w)
end

local function room(w)
  return w.limit - w.stored - w.added
end

local function charge(w, units)
  local added = math.min(units, math.max(0, room(w)))
  w.added = w.added + added
  return added > 0
end

local function overcharge(w, units)
  local added = math.min(units, math.max(0, TOTAL_WRAP - 1 - w.stored - w.added))
  w.added = w.added + added
  return added > 0
end

local function wait_ms(w, cost)
  local excess = cost - room(w)
  local position = bisect(w, w.first, w.length, function(e)
    return between(w.forgotten, e.total) >= excess
  end)
  local last = position < w.length and entry(w, position)
  return (last and last.at or w.at) + w.x - now
end

local function reset_after_ms(w)
  if w.added > 0 then
    return w.at + w.x - now
  end
  return w.stored > 0 and w.newest.at + w.x - now or 0
end

-- Rewrites every entry with its time in the shifted time base.
local function rewrite(w)
  local texts = redis.call('LRANGE', w.key, 0, -1)
  for from = 1, #texts, CHUNK do
    local chunk = {}
    for i = from, math.min(#texts, from + CHUNK - 1) do
      local at, rest = string.match(texts[i], '^(%-?%d+)(:.*)$')
      chunk[#chunk + 1] = at and string.format('%.0f', at - w.shift) .. rest or texts[i]
    end
    redis.call('RPUSH', w.key, unpack(chunk))
  end
  redis.call('LTRIM', w.key, #texts, -1)
  w.shift = 0
end

-- Adds this call's units to the newest entry, and drops the entries that no longer count.
local function save(w, ttl)
  if w.foreign then
    -- Another algorithm's state. A server without memory refuses only the first write of a call.
    redis.call('SET', w.key, '')
    redis.call('DEL', w.key)
  elseif w.shifted then
    rewrite(w)
  end
  local newest = w.stored > 0 and w.newest or { total = 0 }
  local total = (newest.total + w.added) % TOTAL_WRAP
  if newest.at == w.at then
    local text = string.format(NEWEST, w.at, newest.units + w.added, total, w.generation)
    redis.call('LSET', w.key, -1, text)
  else
    redis.call('RPUSH', w.key, string.format(NEWEST, w.at, w.added, total, w.generation))
    if newest.at then -- no longer the newest
      redis.call('LSET', w.key, -2, string.format(ENTRY, newest.at, newest.units, newest.total))
    end
  end
  if w.first > 0 then
    redis.call('LTRIM', w.key, w.first, -1)
  end
  redis.call('PEXPIRE', w.key, ttl)
end

local function save_shifted(w, ttl)
  rewrite(w)
  redis.call('PEXPIRE', w.key, ttl)
end

return {
  load = load,
  room = room,
  charge = charge,
  overcharge = overcharge,
  wait_ms = wait_ms,
  reset_after_ms = reset_after_ms,
  save = save,
  save_shifted = save_shifted,
}
