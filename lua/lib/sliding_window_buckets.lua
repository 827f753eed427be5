-- Sliding window of sub-windows. Twin of crates/algorithms/src/sliding_window_buckets.rs.
--
-- State: a hash of sub-window index (its start in ms / its width in ms) to
-- count, with "w" the width and "g" the generation; while units are leased out, "l"
-- "<index>:<index before>:<units out of that sub-window>:<of the one before>:<proxies that were
-- granted them>:<those of the one before>": of the newest two that had grants.
--
-- w: limit (N), x (W in ms), y (sub-windows in W), width (ms), span (sub-windows that an
--    admission counts for), current (index of now), used,
--    kind (7: strict), counts (as stored) and live (those that count, in today's width): {index, units, field};
--    of leases out_index, index_before, out, out_before, marks, marks_before, and out_shifted, the
--    field of the hash that a far step back of the clock makes of them, whatever is done then

local STRICT = 7
local CHUNK = 1000 -- unpack() has a limit

-- From the caller's instant until a sub-window is forgotten.
local function forgotten_after_ms(w, index)
  return (index + w.span) * w.width - now
end

-- What is leased out; says whether it is what was written.
local function read_out(w, text)
  local index, before, out, out_before, marks, marks_before =
    string.match(text, '^(%-?%d+):(%-?%d+):(%d+):(%d+):([;-z]*):([;-z]*)$')
  if not index or not sound(math.abs(index) + math.abs(before) + out + out_before, 1) then
    return false
  end
  w.out_index, w.index_before, w.out, w.out_before = index + 0, before + 0, out + 0, out_before + 0
  w.marks, w.marks_before = marks, marks_before
  return true
end

-- One field of the hash; says whether it is one that was written.
local function read_field(w, counts, field, text)
  if field == 'l' then
    return read_out(w, text)
  end
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
  local flat = held('HGETALL', w.key)
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

-- What is leased out, as the hash has it: '' if it is nothing any more, nil if it never was anything.
local function encode_out(w)
  if not w.out then
    return nil
  elseif w.out + w.out_before == 0 then
    return ''
  end
  return string.format('%.0f:%.0f:%.0f:%.0f:%s:%s', w.out_index, w.index_before, w.out, w.out_before,
    w.marks, w.marks_before)
end

-- Moves the counts so that the newest is in the sub-window of now.
local function shift(w, counts)
  local by = counts[#counts][1] - math.floor(now / w.stored_width)
  for _, count in ipairs(counts) do
    count[1] = count[1] - by
  end
  if w.out then
    w.out_index, w.index_before = w.out_index - by, w.index_before - by
  end
  w.shifted, w.out_shifted = true, encode_out(w)
end

-- Units leased out of a sub-window.
local function out_of(w, index)
  if not w.out then
    return 0
  end
  return index == w.out_index and w.out or index == w.index_before and w.out_before or 0
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
  end
  w.counts = counts
  local newest = counts[#counts][1] * w.stored_width
  w.current = math.floor(math.max(newest, now) / w.width)
  w.live = live(w, counts)
  if w.out and w.stored_width ~= w.width then
    w.out, w.out_before, w.marks, w.marks_before = 0, 0, '', ''
  end
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

local function save_out(w, out)
  if out == '' then
    redis.call('HDEL', w.key, 'l')
  elseif out then
    redis.call('HSET', w.key, 'l', out)
  end
end

-- Replaces the whole hash.
local function rewrite(w, generation, width, counts, out, ttl)
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
  save_out(w, out)
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
  save_out(w, encode_out(w))
  redis.call('PEXPIRE', w.key, ttl)
end

local function save(w, ttl)
  if w.counts and not w.shifted and not w.settled and w.stored_width == w.width then
    update(w, ttl)
  else
    rewrite(w, w.generation, w.width, w.live, encode_out(w), ttl)
  end
end

local function save_shifted(w, ttl)
  rewrite(w, w.seen, w.stored_width, w.counts, w.out_shifted, ttl)
end

local M = {
  load = load,
  room = room,
  charge = charge,
  wait_ms = wait_ms,
  reset_after_ms = reset_after_ms,
  save = save,
  save_shifted = save_shifted,
  out_of = out_of,
}
if leased then
  local load_plain = M.load
  function M.load(w)
    local problem = load_plain(w)
    if not w.out then
      w.out_index, w.index_before, w.out, w.out_before, w.marks, w.marks_before = 0, 0, 0, 0, '', ''
    end
    return problem
  end
  local function slot_of(w, index)
    return index == w.out_index and 'out' or index == w.index_before and 'out_before'
  end
  local function named(w, start)
    for _, count in ipairs(w.live) do
      if count[1] * w.width == start then
        return slot_of(w, count[1])
      end
    end
  end
  local function give_back(w, slot, units)
    for _, count in ipairs(w.live) do
      if slot_of(w, count[1]) == slot then
        local taken = math.min(units, count[2])
        count[2], w.used = count[2] - taken, w.used - taken
      end
    end
  end
  local function open(w)
    return w.current * w.width, (w.current + 1) * w.width - now
  end
  local function roll(w)
    if w.out_index ~= w.current then
      w.out_index, w.index_before = w.current, w.out_index
      w.out, w.out_before, w.marks, w.marks_before = 0, w.out, '', w.marks
    end
  end
  -- include: lib/granted.lua
  function M.leased(w)
    return out_of(w, w.current)
  end
end
return M
