-- Sliding window of sub-windows. Twin of crates/algorithms/src/sliding_window_buckets.rs.
--
-- State: a hash of sub-window index (its start in ms / its width in ms) to
-- count, with "w" the width and "g" the generation.
--
-- w: limit (N), x (W in ms), y (sub-windows in W), width (ms), span (sub-windows that an
--    admission counts for), current (index of now), used,
--    kind (7: strict), counts (as stored) and live (those that count, in today's width): {index, units, field}

local STRICT = 7
local CHUNK = 1000 -- unpack() has a limit

-- From the caller's instant until a sub-window is forgotten.
local function forgotten_after_ms(w, index)
  return (index + w.span) * w.width - now
end

-- One field of the hash; says whether it is one that was written.
local function read_field(w, counts, field, text)
  local number = string.match(text, '^%d+$')
  number = number and number + 0
  if not number or number >= 2 ^ 53 then
    return false
  end
  if field == 'w' then
    w.stored_width = number
  elseif field == 'g' then
    w.seen = number
  else
    local index = string.match(field, '^%-?%d+$')
    index = index and index + 0
    if not index or math.abs(index) >= 2 ^ 53 then
      return false
    end
    counts[#counts + 1] = { index, number, field }
  end
  return true
end

-- The stored counts, oldest first; nil if there are none.
local function read(w)
  local flat = redis.pcall('HGETALL', w.key)
  if flat.err then
    return nil, foreign(w)
  end
  if #flat == 0 then
    return nil
  end
  local counts = {}
  for i = 1, #flat, 2 do
    if not read_field(w, counts, flat[i], flat[i + 1]) then
      return nil, CORRUPT
    end
  end
  if not counts[1] or not w.stored_width or not sound(0, w.stored_width) then
    return nil, CORRUPT
  end
  table.sort(counts, function(a, b)
    return a[1] < b[1]
  end)
  return counts
end

-- Moves the counts so that the newest is in the sub-window of now.
local function shift(w, counts)
  local by = counts[#counts][1] - math.floor(now / w.stored_width)
  for _, count in ipairs(counts) do
    count[1] = count[1] - by
  end
end

-- The sub-windows that count, in today's width: each count belongs to the sub-window in which
-- its own started.
local function live(w, counts)
  local found = {}
  for _, count in ipairs(counts) do
    local index = math.floor(count[1] * w.stored_width / w.width)
    local last = found[#found]
    if index > w.current - w.span then
      if last and last[1] == index then
        last[2] = last[2] + count[2]
      else
        found[#found + 1] = { index, count[2] }
      end
      w.used = w.used + count[2]
    end
  end
  return found
end

local function load(w)
  w.width = w.x / w.y
  w.span = w.kind == STRICT and w.y + 1 or w.y
  w.current, w.used, w.live = math.floor(now / w.width), 0, {}
  local counts, problem = read(w)
  if not counts then
    return problem
  end
  if counts[#counts][1] * w.stored_width - now > w.x then
    shift(w, counts)
    w.shifted = true
  end
  w.counts = counts
  local newest = counts[#counts][1] * w.stored_width
  w.current = math.floor(math.max(newest, now) / w.width)
  w.live = live(w, counts)
end

local function room(w)
  return w.limit - w.used
end

local function charge(w, units)
  units = math.min(units, math.max(0, w.limit - w.used))
  if units == 0 then
    return false
  end
  local last = w.live[#w.live]
  if last and last[1] == w.current then
    last[2] = last[2] + units
  else
    w.live[#w.live + 1] = { w.current, units }
  end
  w.used = w.used + units
  return true
end

local function wait_ms(w, cost)
  local excess = w.used + cost - w.limit
  for _, count in ipairs(w.live) do
    excess = excess - count[2]
    if excess <= 0 then
      return forgotten_after_ms(w, count[1])
    end
  end
  return 0
end

local function reset_after_ms(w)
  local newest = w.live[#w.live]
  if newest and newest[2] == 0 then
    -- What was returned leaves a count of 0.
    for i = #w.live, 1, -1 do
      if w.live[i][2] > 0 then
        return forgotten_after_ms(w, w.live[i][1])
      end
    end
    return 0
  end
  return newest and forgotten_after_ms(w, newest[1]) or 0
end

-- Replaces the whole hash.
local function rewrite(w, generation, width, counts, ttl)
  if not w.counts then
    redis.call('DEL', w.key) -- what another algorithm left
  end
  local flat, written = { 'w', width, 'g', generation }, {}
  for i, count in ipairs(counts) do
    written[string.format('%.0f', count[1])] = true
    flat[#flat + 1] = count[1]
    flat[#flat + 1] = count[2]
    if #flat >= CHUNK or i == #counts then
      redis.call('HSET', w.key, unpack(flat))
      flat = {}
    end
  end
  local gone = {}
  for _, count in ipairs(w.counts or {}) do
    if not written[count[3]] then
      gone[#gone + 1] = count[3]
    end
  end
  if #gone > 0 then
    redis.call('HDEL', w.key, unpack(gone))
  end
  redis.call('PEXPIRE', w.key, ttl)
end

-- Changes what changed: the newest count, and the ones that count no more.
local function update(w, ttl)
  local gone = {}
  for _, count in ipairs(w.counts) do
    if count[1] <= w.current - w.span then
      gone[#gone + 1] = count[3]
    end
  end
  local newest = w.live[#w.live]
  if w.generation == w.seen then
    redis.call('HSET', w.key, newest[1], newest[2])
  else
    redis.call('HSET', w.key, newest[1], newest[2], 'g', w.generation)
  end
  if #gone > 0 then
    redis.call('HDEL', w.key, unpack(gone))
  end
  redis.call('PEXPIRE', w.key, ttl)
end

local function save(w, ttl)
  if w.counts and not w.shifted and not w.settled and w.stored_width == w.width then
    update(w, ttl)
  else
    rewrite(w, w.generation, w.width, w.live, ttl)
  end
end

local function save_shifted(w, ttl)
  rewrite(w, w.seen, w.stored_width, w.counts, ttl)
end

local M = {
  load = load,
  room = room,
  charge = charge,
  wait_ms = wait_ms,
  reset_after_ms = reset_after_ms,
  save = save,
  save_shifted = save_shifted,
}
if leased then
  local function held(w, start, units)
    for _, count in ipairs(w.live) do
      if count[1] * w.width == start then
        if units then
          w.used = w.used + units - count[2]
          count[2] = units
        end
        return count[2]
      end
    end
  end
  local function open(w)
    return w.current * w.width, (w.current + 1) * w.width - now
  end
  -- include: lib/lease_window.lua
end
return M
