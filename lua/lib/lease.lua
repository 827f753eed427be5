-- Units of a bucket granted in advance to proxies.
-- Twin of crates/algorithms/src/lease.rs; docs/leases.md has the argument.
--
-- Included after a bucket's functions, which it replaces by ones that keep the bucket from
-- refilling below what is leased out; added: settle, grant.
--
-- State: the bucket's own with all of its fields, then, of a GCRA only, ":<ms of the latest
-- write>", then ":<epoch>:<edge ms>:<ttl ms>:<units of this epoch>:<of the one before>
-- :<proxies seen in it>:<in the one before>"; a proxy is one character. Only while units are outstanding.
--
-- b: lease (the arguments: ttl, want, proxy, settle), and of the state: epoch, edge, ttl,
--    current, previous, marks, marks_before, latest (of a GCRA)

local OWED_MAX = 2 ^ 51 -- plus a time and a generation, below 2^53
-- The plain state, its latest write, and what is leased.
local STATE = (kind == 2 and '^(g%d+:%d+:%d+:%d+:?o?%d*):(%d+)' or '^(b%d+:%d+:(%d+):%d+:?o?%d*)')
  .. ':(%d+):(%d+):(%d+):(%d+):(%d+):([;-z]*):([;-z]*)$'
local FORMAT = '%s:%.0f:%.0f:%.0f:%.0f:%.0f:%s:%s'

local load_plain, encode_plain, charge_plain = M.load, M.encode, M.charge

local function outstanding(b)
  return b.current + b.previous
end

-- Units as parts. Leases may exceed a capacity that was lowered after them.
local function owed(b, units)
  return math.min(units * b.x, OWED_MAX)
end

local function drained(b, debt, elapsed)
  if elapsed <= 0 then
    return debt
  end
  return elapsed < math.ceil(debt / b.y) and debt - elapsed * b.y or 0
end

local function second_edge(b)
  return b.edge + math.max(b.ttl, b.lease.ttl)
end

-- The least debt: all outstanding units until the edge, when the older ones have expired, and the
-- rest until the second edge. Each drains only from its edge on.
local function floor(b)
  local all = drained(b, owed(b, outstanding(b)), b.at - b.edge)
  return math.max(all, drained(b, owed(b, b.current), b.at - second_edge(b)))
end

-- Advances past the edges that have passed.
local function advance(b)
  if b.at < b.edge then
    return
  end
  local second = second_edge(b)
  if b.at < second then
    b.epoch, b.edge = b.epoch + 1, second
    b.previous, b.marks_before = b.current, b.marks
  else
    b.previous = 0
  end
  b.current, b.marks = 0, ''
  -- While leasing is off, nothing is granted; on again, the old ttl holds.
  if b.lease.ttl > 0 then
    b.ttl = b.lease.ttl
  end
end

-- The bucket's own state with all of its fields, its latest write, and what is leased.
local function with_leases(b, text, latest)
  if kind == 2 and not string.find(text, ':o', 1, true) then -- with ':o', has both
    if not string.find(text, ':%d+:%d+:') then
      text = text .. ':0:1'
    end
    text = string.format('%s:%.0f', text, latest)
  end
  return string.format(FORMAT, text, b.epoch, b.edge, b.ttl, b.current, b.previous, b.marks, b.marks_before)
end

local load_absent = M.load_absent
M.load_absent = true

function M.load(b, text)
  b.current, b.previous, b.marks, b.marks_before, b.latest = 0, 0, '', '', now
  if not text then
    return load_absent and load_plain(b, text)
  end
  local plain, latest, epoch, edge, ttl, current, previous, seen, before = string.match(text, STATE)
  if not plain then
    return load_plain(b, text)
  end
  latest, b.epoch, b.edge, b.ttl = latest + 0, epoch + 0, edge + 0, ttl + 0
  b.current, b.previous, b.marks, b.marks_before = current + 0, previous + 0, seen, before
  if not sound(math.max(latest, b.epoch, b.edge) + b.ttl + outstanding(b), 1) then
    return CORRUPT
  end
  if kind == 2 and string.find(plain, ':o', 1, true) then
    plain = string.format('%s:%.0f', plain, latest)
  end
  local problem = load_plain(b, plain)
  if problem then
    return problem
  end
  local ahead, moved = latest - now, b.shifted
  if kind == 2 then
    moved = ahead > math.floor(b.limit * b.x / b.y)
  end
  if moved then
    -- The leases move with the bucket's times.
    b.edge, latest = math.max(0, b.edge - ahead), now
  end
  b.latest = math.max(latest, now)
  if b.shifted then
    b.shifted = with_leases(b, b.shifted, b.latest)
  end
  b.debt = math.max(b.debt, floor(b))
  advance(b)
end

function M.encode(b)
  local text = encode_plain(b)
  return outstanding(b) > 0 and with_leases(b, text, b.latest) or text
end

function M.charge(b, units)
  -- The debt may exceed a capacity lowered after the leases.
  return b.debt < b.limit * b.x and charge_plain(b, units)
end

-- Removes units from an epoch, as far as it has them; returns how many.
local function take(b, epoch, units)
  if epoch == b.epoch then
    units = math.min(units, b.current)
    b.current = b.current - units
  elseif epoch + 1 == b.epoch then
    units = math.min(units, b.previous)
    b.previous = b.previous - units
  else
    return 0
  end
  return units
end

-- Removes units from the debt, but none that are leased.
function M.credit(b, units)
  b.debt = math.max(0, b.debt - owed(b, units), owed(b, outstanding(b)))
end

-- Settles grants; returns whether any of them was still outstanding.
function M.settle(b)
  local before = outstanding(b)
  for i = 1, #b.lease.settle, 3 do
    if outstanding(b) == 0 then
      break
    end
    local epoch = b.lease.settle[i]
    take(b, epoch, b.lease.settle[i + 1])
    M.credit(b, take(b, epoch, b.lease.settle[i + 2]))
  end
  return outstanding(b) ~= before
end

-- include: lib/marks.lua

-- Grants what is wanted, up to a fair share of what is left; returns units, epoch, ttl.
function M.grant(b)
  local want, ttl = b.lease.want, b.lease.ttl
  if want == 0 or ttl == 0 or kind == 3 then
    return 0, 0, 0
  end
  if outstanding(b) == 0 then
    b.epoch, b.edge, b.ttl = b.at, b.at + ttl, ttl
    b.marks, b.marks_before = '', ''
  end
  local proxies = see(b)
  local units = math.max(0, math.min(want, math.floor(M.room(b) / (2 * proxies))))
  b.current = b.current + units
  b.debt = b.debt + units * b.x
  return units, b.epoch, b.ttl
end

M.leased = outstanding

-- From now until the debt is no more than `parts`.
local function wait_until(b, parts)
  local function until_edge(edge, units)
    local excess = owed(b, units) - parts
    return excess > 0 and edge - b.at + math.ceil(excess / b.y) or 0
  end
  local wait = math.max(0, math.ceil((b.debt - parts) / b.y))
  if outstanding(b) > 0 then
    wait = math.max(wait, until_edge(b.edge, outstanding(b)), until_edge(second_edge(b), b.current))
  end
  return b.at - now + wait
end

function M.wait_ms(b, cost)
  return wait_until(b, M.target(b, cost))
end

function M.reset_after_ms(b)
  return b.debt == 0 and 0 or wait_until(b, 0)
end
