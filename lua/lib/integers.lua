-- Exact integers in doubles: every number stays below 2^53, and none is ever
-- formatted by tostring or `..`, which keep 14 digits.

local PRODUCT_MAX = 2251799813685248 -- 2^51
local NUMBER_MAX = 9007199254740992 -- 2^53
local TIME_MAX_MS = 4503599627370495 -- 2^52 - 1
local floor, ceil = math.floor, math.ceil

-- The decimal digits of an integer.
local function digits(n)
  return string.format('%.0f', n)
end

-- a*b/c rounded up, for 0 <= a <= c <= 2^51 and b <= 2^53, however large the product.
local function scale_up(a, b, c)
  if a * b < NUMBER_MAX then
    return ceil(a * b / c)
  end
  local quotient, rest, bit = 0, 0, PRODUCT_MAX * 4
  while bit >= 1 do
    quotient, rest = quotient * 2, rest * 2
    if b >= bit then
      b = b - bit
      rest = rest + a
    end
    while rest >= c do
      quotient, rest = quotient + 1, rest - c
    end
    bit = bit / 2
  end
  return rest > 0 and quotient + 1 or quotient
end

-- A stored number: digits that a double holds exactly, else nil.
local function stored_number(text)
  local n = text and tonumber(text)
  if n and n < NUMBER_MAX then
    return n
  end
end

-- A stored number that something is divided by.
local function stored_unit(text)
  local n = stored_number(text)
  if n and n >= 1 and n <= PRODUCT_MAX then
    return n
  end
end
