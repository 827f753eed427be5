-- How each kind of limit gives units back, for lua/credit.lua and lua/check.lua.
--
-- The newest admissions go first: they would have counted longest. credit(l, units) changes a limit
-- as loaded and returns whether anything was used; keep(l, ttl) then stores it.

local TOTAL_WRAP = 1000000 -- as in sliding_window_log.lua

local function from_bucket(b, units)
  if b.debt == 0 then
    return false
  end
  if b.algorithm.forget then
    b.algorithm.forget(b)
  end
  if b.algorithm.credit then -- keeps leased units charged
    b.algorithm.credit(b, units)
  else
    b.debt = math.max(0, b.debt - units * b.x)
  end
  return true
end

-- A count reduced by units, but not below those leased out of it.
local function lower(count, units, out)
  return math.max(count - units, math.min(count, out or 0))
end

local function from_fixed_window(w, units)
  if w.used == 0 then
    return false
  end
  w.used = lower(w.used, units, w.out)
  return true
end

-- The window of now, then the one before.
local function from_sliding_window(w, units)
  if w.current + w.previous == 0 then
    return false
  end
  local before = w.current
  w.current = lower(before, units, w.out)
  w.previous = lower(w.previous, units - (before - w.current), w.out_before)
  return true
end

local function from_sub_windows(w, units)
  if w.used == 0 then
    return false
  end
  if not w.live then
    w.algorithm.list(w)
  end
  for i = #w.live, 1, -1 do -- a count may become 0
    local count = w.live[i]
    local left = lower(count[2], units, w.algorithm.out_of(w, count[1]))
    local taken = count[2] - left
    count[2], units, w.used = left, units - taken, w.used - taken
  end
  return true
end

-- The time, the units and the total of a log's entry at a position from 0.
local function entry(w, position)
  local at, units, total =
    string.match(redis.call('LINDEX', w.key, position), '^(%-?%d+):(%d+):(%d+)')
  return at - w.shift, units + 0, total + 0
end

-- Finds the last entry of which units stay.
local function from_log(w, units)
  if w.stored == 0 then
    return false
  end
  w.stored = math.max(0, w.stored - units)
  local low, high = w.first, w.length - 1
  while w.stored > 0 and low < high do
    local middle = math.floor((low + high) / 2)
    local _, _, total = entry(w, middle)
    if (total - w.forgotten) % TOTAL_WRAP >= w.stored then
      high = middle
    else
      low = middle + 1
    end
  end
  w.last, w.newest.at = low, (entry(w, low))
  return true
end

local function credit(l, units)
  if units == 0 then
    return false
  elseif l.kind <= 3 or l.kind == 10 then
    return from_bucket(l, units)
  elseif l.kind <= 5 or l.kind == 11 then
    return from_fixed_window(l, units)
  elseif l.kind == 6 then
    return from_log(l, units)
  elseif l.kind <= 8 then
    return from_sub_windows(l, units)
  elseif l.kind == 12 then
    return l.algorithm.credit(l, units)
  end
  return from_sliding_window(l, units)
end

-- Cuts a log after the units that stay, of which there are some.
local function keep_log(w, ttl)
  if w.shifted then
    w.algorithm.save_shifted(w, ttl) -- in the current time base, at the same positions
  end
  local at, units, total = entry(w, w.last)
  local cut = (total - w.forgotten - w.stored) % TOTAL_WRAP
  redis.call('LSET', w.key, w.last, string.format('%.0f:%.0f:%.0f:%.0f',
    at, units - cut, (total - cut) % TOTAL_WRAP, w.generation))
  redis.call('LTRIM', w.key, w.first, w.last)
  redis.call('PEXPIRE', w.key, ttl)
end

local function keep(l, ttl)
  local listed = l.kind == 6 or l.kind == 7 or l.kind == 8
  if listed and l.algorithm.room(l) == l.limit then
    redis.call('DEL', l.key) -- a list cannot be empty
  elseif l.kind == 6 then
    keep_log(l, ttl)
  elseif l.kind == 12 then
    l.algorithm.save(l, ttl)
  else
    redis.call('SET', l.key, l.algorithm.encode(l), 'PX', ttl)
  end
end

-- Sets the debt that the next check will read: at most the capacity, or the leased units if they
-- exceed a capacity that was lowered. A queue's level is not cut.
local function as_read_next(b)
  if b.lease and b.kind < 3 then
    local leased = math.min(b.algorithm.leased(b) * b.x, 2 ^ 51)
    b.debt = math.max(leased, math.min(b.debt, b.limit * b.x))
  end
end
