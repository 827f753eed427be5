-- State that is corrupt, or of another algorithm.

local CORRUPT = 'corrupt'

-- Whether arithmetic on numbers read from a state is exact: none is negative, so
-- a sum within bounds bounds each of them, and `unit` may be divided by.
local function sound(sum, unit)
  return sum < 2 ^ 53 and unit >= 1 and unit <= 2 ^ 51
end

-- What redis.pcall read of a key: a table if it is of another type. Any other error, such as a missing
-- permission, ends the call: the state is not corrupt.
local function held(value)
  if type(value) == 'table' and value.err and not string.find(value.err, '^WRONGTYPE') then
    error(value)
  end
  return value
end

-- A key that does not hold what the algorithm marked `tag` writes. Another
-- algorithm's state counts as unused, and is replaced when something is
-- charged, but its generation counts; anything else is corrupt.
local function foreign(l, tag)
  local text, generation = held(redis.pcall('GET', l.key)), nil
  if type(text) == 'string' then
    local mark
    mark, generation = string.match(text, '^([bcgfsw])(%d+):')
    if mark == tag then
      return CORRUPT
    end
  else
    local log, hash = held(redis.pcall('LINDEX', l.key, -1)), held(redis.pcall('HGET', l.key, 'g'))
    if type(log) == 'string' then
      generation = string.match(log, '^%-?%d+:%d+:%d+:(%d+)$')
    elseif type(hash) == 'string' then
      generation = string.match(hash, '^%d+$')
    else
      -- A user who may not read slots never stored any.
      local slots = redis.pcall('ZSCORE', l.key, 'g')
      generation = type(slots) == 'string' and -1 - slots
    end
  end
  generation = generation and generation + 0
  if not generation or generation >= 2 ^ 53 then
    return CORRUPT
  end
  l.seen = generation
end
