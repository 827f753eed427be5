-- Sliding window of sub-windows. Twin of crates/algorithms/src/sliding_window_buckets.rs.
--
-- State: "s<generation>:<width ms>:<units>:<origin>:<last>:<newest>:<units of the newest>;", then for each
-- older sub-window, oldest first, "<gap>:<units>;". The index of a sub-window is its start / its width; a
-- gap is how far it is from the one before, the first from `origin`; `last` is the index of the last of
-- them, or `origin`. So most calls read only the head and what has expired since. While units are
-- leased, "|<index>:<index before>:<outstanding units of that sub-window>:<of the one before>:
-- <proxies with grants of it>:<of the one before>" follows, for the newest two that had grants.
--
-- w: limit (N), x (W in ms), y (sub-windows in W), width (ms), span (sub-windows that an
--    admission counts for), current (index of now), used (units that count),
--    kind (7: strict), body (the older sub-windows, as stored), place (where in it those that count
--    begin), origin, last, newest (false: none counts) and units, as stored;
--    live (those that count, in the current width: {index, units}; false if not read one by one);
--    of leases out_index, index_before, out, out_before, marks, marks_before

local STRICT = 7
local HEAD = 's%.0f:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f;'
local HEAD_READ = '^s(%d+):(%d+):(%d+):(%-?%d+):(%-?%d+):(%-?%d+):(%d+);([^|]*)(|?.*)$'

-- From the caller's instant until a sub-window is forgotten.
local function forgotten_after_ms(w, index)
  return (index + w.span) * w.width - now
end

-- Of the older sub-window at a place, `before` being the index before it: its index, its units, and
-- the place after it; nil at the end.
local function older(w, place, before)
  local _, last, gap, units = string.find(w.body, '^(%d+):(%d+);', place)
  if gap then
    return before + gap, units + 0, last + 1
  end
end

-- Reads what is leased out; returns whether the text is sound.
local function read_out(w, text)
  local index, before, out, out_before, marks, marks_before =
    string.match(text, '^|(%-?%d+):(%-?%d+):(%d+):(%d+):([;-z]*):([;-z]*)$')
  if not index or not sound(math.abs(index) + math.abs(before) + out + out_before, 1) then
    return false
  end
  w.out_index, w.index_before, w.out, w.out_before = index + 0, before + 0, out + 0, out_before + 0
  w.marks, w.marks_before = marks, marks_before
  return true
end

local function read(w, text)
  local generation, width, total, origin, last, newest, units, body, out = string.match(text, HEAD_READ)
  if not generation then
    return foreign(w, 's')
  end
  local furthest = math.max(math.abs(origin), math.abs(last), math.abs(newest))
  if not sound(furthest, width + 0) or not sound(total + units + generation, 1)
    or (out ~= '' and not read_out(w, out)) then
    return CORRUPT
  end
  w.seen, w.stored_width, w.used, w.origin = generation + 0, width + 0, total + 0, origin + 0
  w.last, w.newest, w.units, w.body = last + 0, newest + 0, units + 0, body
end

local function encode_out(w)
  if not w.out or w.out + w.out_before == 0 then
    return ''
  end
  return string.format('|%.0f:%.0f:%.0f:%.0f:%s:%s', w.out_index, w.index_before, w.out, w.out_before,
    w.marks, w.marks_before)
end

-- Moves the sub-windows so that the newest is that of now.
local function shift(w)
  local by = w.newest - math.floor(now / w.stored_width)
  w.origin, w.last, w.newest = w.origin - by, w.last - by, w.newest - by
  if w.out then
    w.out_index, w.index_before = w.out_index - by, w.index_before - by
  end
  w.shifted = string.format(HEAD, w.seen, w.stored_width, w.used, w.origin, w.last, w.newest, w.units)
    .. w.body .. encode_out(w)
end

-- Skips the sub-windows that no longer count.
local function forget(w)
  local horizon = w.current - w.span
  if w.newest <= horizon then
    w.used, w.newest, w.body = 0, false, ''
    return
  end
  while true do
    local index, units, place = older(w, w.place, w.origin)
    if not index then
      return w.place <= #w.body and CORRUPT or nil
    elseif index > horizon then
      return
    end
    w.used, w.origin, w.place = w.used - units, index, place
  end
end

-- Reads the sub-windows that count one by one, in the current width: the count of a sub-window of
-- another width goes to the one in which that started.
local function list(w)
  w.used, w.live = 0, {}
  local function add(index, units)
    index = math.floor(index * w.stored_width / w.width)
    local last = w.live[#w.live]
    if index <= w.current - w.span then
      return
    elseif last and last[1] == index then
      last[2] = last[2] + units
    else
      w.live[#w.live + 1] = { index, units }
    end
    w.used = w.used + units
  end
  local index, place, units = w.origin, w.place, nil
  while w.newest do
    local next_index, next_units, next_place = older(w, place, index)
    if not next_index then
      break
    end
    index, units, place = next_index, next_units, next_place
    add(index, units)
  end
  if place <= #w.body then
    return CORRUPT
  elseif w.newest then
    add(w.newest, w.units)
  end
end

-- The count of a sub-window that was read with the others, if it has one. There may be a thousand, and 64
-- settlements to look for.
local function count_of(w, index)
  local low, high = 1, #w.live
  while low < high do
    local middle = math.floor((low + high) / 2)
    if w.live[middle][1] < index then
      low = middle + 1
    else
      high = middle
    end
  end
  local count = w.live[low]
  return count and count[1] == index and count or nil
end

-- Sets up a window without a state, or with that of another algorithm.
local function clear(w)
  w.width = w.x / w.y
  w.span = w.kind == STRICT and w.y + 1 or w.y
  w.current, w.used, w.units, w.live = math.floor(now / w.width), 0, 0, false
  w.body, w.place, w.origin, w.last, w.newest, w.out = '', 1, 0, 0, false, nil
  w.stored_width = w.width
end

local function load(w, text)
  clear(w)
  local problem = text and read(w, text)
  if problem or not w.newest then
    return problem
  end
  if w.newest * w.stored_width - now > w.x then
    shift(w)
  end
  w.current = math.floor(math.max(w.newest * w.stored_width, now) / w.width)
  if w.stored_width == w.width then
    return forget(w)
  end
  if w.out then
    w.out, w.out_before, w.marks, w.marks_before = 0, 0, '', ''
  end
  return list(w)
end

local function room(w)
  return w.limit - w.used
end

-- Adds units, up to `most` in all.
local function add(w, units, most)
  units = math.min(units, math.max(0, most - w.used))
  if units == 0 then
    return false
  end
  w.used = w.used + units
  local last = w.live and w.live[#w.live]
  if last and last[1] == w.current then
    last[2] = last[2] + units
  elseif w.live then
    w.live[#w.live + 1] = { w.current, units }
  elseif w.newest == w.current then
    w.units = w.units + units
  else
    if w.newest then
      local gap = string.format('%.0f:%.0f;', w.newest - w.last, w.units)
      w.body, w.place, w.last = string.sub(w.body, w.place) .. gap, 1, w.newest
    else
      w.body, w.place, w.origin, w.last = '', 1, w.current - 1, w.current - 1
    end
    w.newest, w.units = w.current, units
  end
  return true
end

local function charge(w, units)
  return add(w, units, w.limit)
end

local function overcharge(w, units)
  return add(w, units, 2 ^ 51)
end

local function wait_ms(w, cost)
  local excess = w.used + cost - w.limit
  if not w.live then
    local index, units, place = older(w, w.place, w.origin)
    while index do
      excess = excess - units
      if excess <= 0 then
        return forgotten_after_ms(w, index)
      end
      index, units, place = older(w, place, index)
    end
    return w.newest and excess <= w.units and forgotten_after_ms(w, w.newest) or 0
  end
  for _, count in ipairs(w.live) do
    excess = excess - count[2]
    if excess <= 0 then
      return forgotten_after_ms(w, count[1])
    end
  end
  return 0
end

local function reset_after_ms(w)
  if not w.live then
    if not w.newest then
      return 0
    elseif w.units > 0 then
      return forgotten_after_ms(w, w.newest)
    end
    list(w)
  end
  -- Returned units can leave a count of 0.
  for i = #w.live, 1, -1 do
    if w.live[i][2] > 0 then
      return forgotten_after_ms(w, w.live[i][1])
    end
  end
  return 0
end

-- Packs the sub-windows that were read one by one; there is at least one.
local function pack(w)
  local parts, count = {}, #w.live
  w.origin = w.live[1][1] - 1
  w.last = w.origin
  for i = 1, count - 1 do
    local index, units = w.live[i][1], w.live[i][2]
    parts[i] = string.format('%.0f:%.0f;', index - w.last, units)
    w.last = index
  end
  w.body, w.place = table.concat(parts), 1
  w.newest, w.units = w.live[count][1], w.live[count][2]
end

local function encode(w)
  if not w.live and not w.newest then
    w.live = {}
  end
  if w.live then
    w.live[1] = w.live[1] or { w.current, 0 } -- an unused window is stored with a count of 0
    pack(w)
  end
  local head = string.format(HEAD, w.generation, w.width, w.used, w.origin, w.last, w.newest, w.units)
  return head .. string.sub(w.body, w.place) .. encode_out(w)
end

-- Units leased out of a sub-window.
local function out_of(w, index)
  if not w.out then
    return 0
  end
  return index == w.out_index and w.out or index == w.index_before and w.out_before or 0
end

local M = {
  load = load,
  load_absent = true,
  list = list,
  room = room,
  charge = charge,
  overcharge = overcharge,
  wait_ms = wait_ms,
  reset_after_ms = reset_after_ms,
  encode = encode,
  out_of = out_of,
  count_of = count_of,
}
if leased then
  local load_plain = M.load
  function M.load(w, text)
    local problem = load_plain(w, text)
    if not w.out then
      w.out_index, w.index_before, w.out, w.out_before, w.marks, w.marks_before = 0, 0, 0, 0, '', ''
    end
    return problem or not w.live and list(w) or nil
  end
  local function named(w, start)
    local index = start / w.width
    if index == w.out_index or index == w.index_before then
      return count_of(w, index) and (index == w.out_index and 'out' or 'out_before')
    end
  end
  local function give_back(w, slot, units)
    local count = count_of(w, slot == 'out' and w.out_index or w.index_before)
    if count then
      local taken = math.min(units, count[2])
      count[2], w.used = count[2] - taken, w.used - taken
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
