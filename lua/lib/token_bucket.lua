-- Token bucket. Twin of crates/algorithms/src/token_bucket.rs.
--
-- State: "b<generation>:<debt in parts>:<ms of the last admission>:<parts of a unit>"

local STATE = 'b' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE

-- A debt stored in other parts, rounded up to these, at most the capacity.
local function adopt(b, debt, parts)
  local rest = debt % parts
  local units = (debt - rest) / parts
  if units >= b.limit then
    return b.limit * b.x
  end
  return units * b.x + scale_up(rest, b.x, parts)
end

function M.load(b, text)
  local generation, debt, at, parts = string.match(text, '^b(%d+):(%d+):(%d+):(%d+)$')
  if not generation then
    return unplain(b, text, 'b')
  end
  generation, debt, at, parts = generation + 0, debt + 0, at + 0, parts + 0
  if not sound(generation + debt + at, parts) then
    return CORRUPT
  end
  b.seen = generation
  local full = b.limit * b.x
  if at > now and at - now > math.floor(full / b.y) then
    at = now
    b.shifted = string.format(STATE, generation, debt, at, parts)
  end
  if parts ~= b.x then
    debt = adopt(b, debt, parts)
  end
  if debt > full then
    debt = full
  end
  if at < now then
    -- The product is built only where it is small.
    local elapsed = now - at
    debt = elapsed < math.ceil(debt / b.y) and debt - elapsed * b.y or 0
    at = now
  end
  b.debt, b.at = debt, at
end

function M.encode(b)
  return string.format(STATE, b.generation, b.debt, b.at, b.x)
end
