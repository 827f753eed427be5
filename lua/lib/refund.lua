-- How each kind of limit refunds a charge. Only lua/refund.lua includes this.
--
-- Each function takes a loaded limit, the units charged, and the time of the charge, not after
-- `now`; it writes the new state, if it changes, and returns whether it does. TTLs stay: what is
-- left expires no later than before.

-- How many entries of a log may follow the refunded one: the total of each is rewritten. A charge
-- is refunded within milliseconds, and a millisecond has one entry.
local LATER_MAX = 100
local TOTAL_WRAP = 1000000 -- as in sliding_window_log.lua

local function keep(l)
  redis.call('SET', l.key, l.algorithm.encode(l), 'KEEPTTL')
  return true
end

-- Refunds what has not drained since, by the bucket's own clock, but no leased units.
local function from_bucket(b, units, charged_at)
  local debt, elapsed = units * b.x, b.at - charged_at
  -- Over its capacity: that was lowered after the charge.
  if units > b.limit or b.debt > b.limit * b.x or elapsed >= math.ceil(debt / b.y) then
    return false
  end
  local before, leased = b.debt, b.algorithm.leased and b.algorithm.leased(b) or 0
  b.debt = math.max(0, before - (debt - elapsed * b.y), math.min(leased * b.x, 2 ^ 51))
  return b.debt < before and keep(b)
end

-- A count reduced by units, but not below those leased out of it.
local function lower(count, units, out)
  return math.max(count - units, math.min(count, out or 0))
end

local function from_fixed_window(w, units, charged_at)
  local left = lower(w.used, units, w.out)
  if charged_at < w.at or left == w.used then
    return false
  end
  w.used = left
  return keep(w)
end

local function from_sliding_window(w, units, charged_at)
  local current, previous = w.current, w.previous
  if charged_at >= w.at then
    w.current = lower(current, units, w.out)
  elseif charged_at + w.x >= w.at then
    w.previous = lower(previous, units, w.out_before)
  end
  return w.current + w.previous < current + previous and keep(w)
end

local function from_sub_window(w, units, charged_at)
  local index = math.floor(charged_at / w.width)
  if w.stored_width ~= w.width or index <= w.current - w.span then
    return false
  end
  if not w.live then
    w.algorithm.list(w)
  end
  local kept, taken = {}, 0
  for _, count in ipairs(w.live) do
    if count[1] == index then
      local left = lower(count[2], units, w.algorithm.out_of(w, index))
      taken, count[2] = count[2] - left, left
    end
    if count[2] > 0 then
      kept[#kept + 1] = count
    end
  end
  if taken == 0 then
    return false
  elseif #kept == 0 then
    redis.call('DEL', w.key)
    return true
  end
  w.live, w.used = kept, w.used - taken
  return keep(w)
end

-- The entries from texts[first] on, after the refund: that entry has fewer units or is gone, and
-- all totals are as much lower. The newest names the generation.
local function tail(w, texts, first, units)
  local kept, less = {}, nil
  for i = first, #texts do
    local at, admitted, total = string.match(texts[i], '^(%-?%d+):(%d+):(%d+)')
    admitted = admitted + 0
    if not less then
      less = math.min(units, admitted)
      admitted = admitted - less
    end
    if admitted > 0 then
      kept[#kept + 1] = string.format('%.0f:%.0f:%.0f', at, admitted, (total - less) % TOTAL_WRAP)
    end
  end
  if #kept > 0 then
    kept[#kept] = kept[#kept] .. string.format(':%.0f', w.generation)
  end
  return kept
end

local function from_log(w, units, charged_at)
  if w.length == 0 or charged_at <= w.at - w.x then
    return false
  end
  local texts, first = redis.call('LRANGE', w.key, -1 - LATER_MAX, -1), nil
  for i, text in ipairs(texts) do
    if string.match(text, '^(%-?%d+):') + 0 == charged_at then
      first = i
    end
  end
  if not first then
    return false
  end
  local kept, position = tail(w, texts, first, units), w.length - #texts + first - 1
  -- A list that is empty for a moment would lose its TTL.
  if #kept == 0 and position == w.first then -- nothing is left that counts
    redis.call('DEL', w.key)
  elseif position > 0 then
    redis.call('LTRIM', w.key, 0, position - 1)
    if #kept == 0 then -- the one before is the newest now
      local newest = redis.call('LINDEX', w.key, -1)
      redis.call('LSET', w.key, -1, newest .. string.format(':%.0f', w.generation))
    else
      redis.call('RPUSH', w.key, unpack(kept))
    end
  else
    redis.call('RPUSH', w.key, unpack(kept))
    redis.call('LTRIM', w.key, w.length, -1)
  end
  if w.first > 0 then
    redis.call('LTRIM', w.key, w.first, -1)
  end
  return true
end

local function refund(l, units, charged_at)
  local kind = l.kind
  if kind <= 2 then
    return from_bucket(l, units, charged_at)
  elseif kind == 3 or kind == 10 then
    return l.algorithm.free(l, l.slot, true) and keep(l)
  elseif kind <= 5 or kind == 11 then
    return from_fixed_window(l, units, charged_at)
  elseif kind == 6 then
    return from_log(l, units, charged_at)
  elseif kind <= 8 then
    return from_sub_window(l, units, charged_at)
  elseif kind == 12 then
    l.slot[5] = 7 -- its request was not let in, so it says nothing of the service
    local freed = l.algorithm.free(l, l.slot)
    if freed then
      redis.call('ZREMRANGEBYSCORE', l.key, 0, now)
    end
    return freed
  end
  return from_sliding_window(l, units, charged_at)
end
