-- Penalties: a bucket that was denied too often is denied altogether for a time.
-- Twin of crates/algorithms/src/penalty.rs.
--
-- State, beside the bucket's: "<ms of the first denial that counts>:<how many>:<ms of the latest penalty's
-- end>:<its length, ms>". If none counts, the first field is the penalty's start.
--
-- p (l.penalty): nth (of its key), after, within, first (length), grow, most (the longest), reported, counts
--    (whether a denial of the check itself counts), and once read key, since, count, till, last (length), begun, changed

-- Until when a new penalty is longer than the latest.
local function remembered_till(p)
  return p.till + 2 * p.last
end

-- The length of a penalty that begins now.
local function next_length(p)
  local grown = now < remembered_till(p) and p.last * p.grow or 0
  return math.min(math.max(grown, p.first), p.most)
end

-- How long until one that begins lasts only as long as the first, ms.
local function anew_in(p)
  return p.grow > 1 and math.max(0, remembered_till(p) - now) or 0
end

-- Counts denials, unless there is a penalty already.
local function count_denials(p, denials)
  if denials == 0 or p.till > now then
    return
  end
  if p.count == 0 then
    p.since = now
  end
  p.count, p.changed = p.count + denials, true
  if p.count >= p.after then
    p.last = next_length(p)
    p.since, p.count, p.till, p.begun = now, 0, now + p.last, true
  end
end

local function read_penalty(p, key)
  p.key, p.since, p.count, p.till, p.last, p.begun, p.changed = key, 0, 0, 0, 0, false, false
  local text = held(redis.pcall('GET', key))
  local since, count, till, last
  if type(text) == 'string' then
    since, count, till, last = string.match(text, '^(%d+):(%d+):(%d+):(%d+)$')
  end
  if since and sound(math.max(since, till) + count + last, 1) then
    -- A shortened penalty counts from its start. After a step back of the clock, none is longer than one
    -- that starts now; the times are stored as they are read then, or they would move along with the clock.
    p.changed = since + 0 > now
    p.since, p.count = math.min(since, now), count + 0
    p.last = math.min(last, p.most)
    p.till = math.min(till, p.since + math.max(p.last, p.first))
    if now - p.since >= p.within then
      p.count = 0
    end
  end
  count_denials(p, p.reported)
end

local function store_penalty(p)
  local till = math.max(p.grow > 1 and remembered_till(p) or p.till, p.count > 0 and p.since + p.within or 0)
  local text = string.format('%.0f:%.0f:%.0f:%.0f', p.since, p.count, p.till, p.last)
  call('SET', p.key, text, 'PX', injected and TTL_INJECTED_MS or math.max(0, till - now) + TTL_MARGIN_MS)
end
