-- Token bucket. Twin of crates/algorithms/src/token_bucket.rs.
--
-- State: "b<generation>:<debt in parts>:<ms of the last admission>:<parts of a unit>", then
-- ":o<parts>" of the debt that were charged beyond the capacity, if any
--
-- b: over (those parts), cut (whether the debt was cut to a capacity that was lowered)

local STATE = 'b' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE .. ':' .. WHOLE

-- Converts a debt from other parts, rounded up, to at most the capacity.
local function adopt(b, debt, parts)
  local rest = debt % parts
  local units = (debt - rest) / parts
  if units >= b.limit then
    return b.limit * b.x
  end
  return units * b.x + scale_up(rest, b.x, parts)
end

-- As adopt, for debt beyond the capacity.
local function adopt_over(b, over, parts)
  local rest = over % parts
  local units = (over - rest) / parts
  if units > 2 ^ 51 / b.x then
    return 2 ^ 51
  end
  return math.min(units * b.x + scale_up(rest, b.x, parts), 2 ^ 51)
end

M.load_absent = true

function M.load(b, text)
  b.over, b.cut = 0, false
  if not text then
    return
  end
  local generation, debt, at, parts = string.match(text, '^b(%d+):(%d+):(%d+):(%d+)$')
  local over = 0
  if not generation then
    generation, debt, at, parts, over = string.match(text, '^b(%d+):(%d+):(%d+):(%d+):o(%d+)$')
    if not generation then
      return unplain(b, text, 'b')
    end
    over = over + 0
  end
  generation, debt, at, parts = generation + 0, debt + 0, at + 0, parts + 0
  if not sound(generation + debt + at, parts) or over > debt then
    return CORRUPT
  end
  b.seen = generation
  local full = b.limit * b.x
  if kind == 3 then -- a queue owes nothing beyond the capacity that it had
    debt, over = debt - over, 0
  end
  local stored, stored_over = debt, over
  if kind == 3 then
    -- Nothing is cut to a capacity that was lowered: the requests that the queue holds start nevertheless.
    debt = parts ~= b.x and adopt_over(b, debt, parts) or math.min(debt, 2 ^ 51)
    full = math.max(full, debt)
  elseif over > 0 then
    debt, over = debt - over, adopt_over(b, over, parts)
  end
  if at > now and at - now > math.floor((full + over) / b.y) then
    at = now
    b.shifted = string.format(STATE, generation, stored, at, parts)
    if stored_over > 0 then
      b.shifted = string.format('%s:o%.0f', b.shifted, stored_over)
    end
  end
  if kind ~= 3 then
    if parts ~= b.x then
      debt = adopt(b, debt, parts)
    elseif debt > full then
      b.cut = true
    end
  end
  if debt > full then
    debt = full
  end
  debt = over > 0 and math.min(debt + over, 2 ^ 51) or debt
  if at < now then
    -- The product is computed only if it is small.
    local elapsed = now - at
    debt = elapsed < math.ceil(debt / b.y) and debt - elapsed * b.y or 0
    over = elapsed < math.ceil(over / b.y) and over - elapsed * b.y or 0
    at = now
  end
  b.debt, b.at, b.over = debt, at, math.min(over, debt)
end

function M.encode(b)
  local text = string.format(STATE, b.generation, b.debt, b.at, b.x)
  local over = math.min(b.over or 0, b.debt)
  return over > 0 and string.format('%s:o%.0f', text, over) or text
end

if kind == 1 then
  M.overcharge = overcharge
end
