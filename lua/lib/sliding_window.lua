-- Sliding window counter: two aligned counts, the older one weighted.
-- Twin of crates/algorithms/src/sliding_window.rs.
--
-- State: "w<generation>:<start ms of the later window>:<its count>:<the one before>:<W ms>"
-- w: limit (N), x (W in ms), at (start of the aligned window of now), elapsed (ms since),
--    current, previous, same (whether the counts read are of the window of now),
--    ahead (whether the state is ahead of now: a second read may then place it elsewhere)

local STATE = 'w' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE

-- The counts as they stand in the window that starts at w.at, and whether the later one is of it,
-- or of the one before. After an edit of W they are kept only if they belong to that window.
local function counts(w, start, current, previous, length)
  if start >= w.at then
    return current, previous, true, false
  end
  if length == w.x and start + length >= w.at then
    return 0, current, false, true
  end
  return 0, 0, false, false
end

local function load(w, text)
  w.elapsed = now % w.x
  w.at, w.current, w.previous, w.ahead = now - w.elapsed, 0, 0, false
  if not text then
    return
  end
  local generation, start, current, previous, length =
    string.match(text, '^w(%d+):(%d+):(%d+):(%d+):(%d+)$')
  if not generation then
    return unplain(w, text, 'w')
  end
  generation, start, length = generation + 0, start + 0, length + 0
  current, previous = current + 0, previous + 0
  if not sound(generation + start + current + previous, length) then
    return CORRUPT
  end
  w.seen = generation
  if start - now > w.x then
    start = now
    w.shifted = string.format(STATE, generation, start, current, previous, length)
  end
  local time = math.max(start, now)
  w.ahead = time > now
  w.elapsed = time % w.x
  w.at = time - w.elapsed
  w.current, w.previous, w.same, w.rolled = counts(w, start, current, previous, length)
end

-- The older count is weighted by the part of its window within W, rounded up.
local function room(w)
  return w.limit - w.current - scale_up(w.x - w.elapsed, w.previous, w.x)
end

local function charge(w, units)
  local added = math.min(units, math.max(0, room(w)))
  w.current = w.current + added
  return added > 0
end

local function overcharge(w, units)
  local before = w.current
  w.current = math.max(before, math.min(before + units, math.floor(2 ^ 51 / w.x)))
  return w.current > before
end

-- The earliest time into a window at which `previous` weighs at most `left`.
local function elapsed_until(w, previous, left)
  if previous == 0 then
    return 0
  end
  return math.max(0, w.x - math.floor(left * w.x / previous))
end

local function wait_ms(w, cost)
  local left, into = w.limit - cost, nil
  if left >= w.current then
    into = elapsed_until(w, w.previous, left - w.current)
  else
    into = w.x + elapsed_until(w, w.current, left)
  end
  return w.at + into - now
end

local function reset_after_ms(w)
  if w.current > 0 then
    return w.at + 2 * w.x - now
  end
  return w.previous > 0 and w.at + w.x - now or 0
end

local function encode(w)
  return string.format(STATE, w.generation, w.at, w.current, w.previous, w.x)
end

local M = {
  load = load,
  load_absent = true,
  encode = encode,
  room = room,
  charge = charge,
  overcharge = overcharge,
  wait_ms = wait_ms,
  reset_after_ms = reset_after_ms,
}
if leased then
  local function named(w, start)
    return start == w.at and 'out' or start + w.x == w.at and 'out_before'
  end
  local function give_back(w, slot, units)
    local count = slot == 'out' and 'current' or 'previous'
    w[count] = math.max(0, w[count] - units)
  end
  local function open(w)
    return w.at, w.at + w.x - now
  end
  local function follows(w)
    return w.rolled
  end
  -- include: lib/lease_window.lua
end
return M
