"""The rule of `policies/meter_table.py` as a script for Redis, so that one round trip reports, counts and grants.

Time is Redis's own. Money may be above 2**53, so counters are added to by Redis itself, which is exact; what is
compared in Lua then is so to one part in 2**53.

KEYS: a hash for each meter, all of one hash slot: second -> used, and "@gateway" -> "report batch held need expires_ms
kept".
ARGV: channel, gateway, report's number, lease_ms, now_ms ('' : Redis's own), window, seconds ahead, spare parts, then
for each meter its name, ends_at (0: the last minute), keep_ms, whether it keeps what the dead held, limit, spare,
wanted, need, base, number of uses, then second and amount of each.
Answer: at_ms, then for each meter granted, batch, used, free, resets_at, retry_at, is_behind, is_called, is_stale, and
whether others were told to report on it.
"""

COUNT = """
local channel, me, report, lease = ARGV[1], '@' .. ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now, window, ahead, spare_parts = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local now_s = math.floor(now / 1000)
local REPORT, BATCH, HELD, NEED, EXPIRES, KEPT = 1, 2, 3, 4, 5, 6

local function whole(number) return string.format('%.0f', number) end
local function put(key, name, entry)
  local parts = {}
  for place = 1, 6 do parts[place] = whole(entry[place]) end
  redis.call('HSET', key, name, table.concat(parts, ' '))
end
local function add(key, used, second, amount)
  local total = redis.call('HINCRBY', key, whole(second), amount)
  if total == 0 then
    redis.call('HDEL', key, whole(second))
    used[second] = nil
  else
    used[second] = total
  end
end
local function sum(used)
  local total = 0
  for _, amount in pairs(used) do total = total + amount end
  return total
end

local function read(key)
  local used, entries = {}, {}
  local found = redis.call('HGETALL', key)
  for place = 1, #found, 2 do
    local name, value = found[place], found[place + 1]
    if string.sub(name, 1, 1) == '@' then
      local entry = {}
      for number in string.gmatch(value, '%S+') do entry[#entry + 1] = tonumber(number) end
      entries[name] = entry
    else
      used[tonumber(name)] = tonumber(value)
    end
  end
  return used, entries
end

local function tidy(key, used, entries, meter)
  if meter.ends == 0 then
    local noted = {}
    for second in pairs(used) do noted[#noted + 1] = second end
    for _, second in ipairs(noted) do
      if second < now_s - window then
        redis.call('HDEL', key, whole(second))
        used[second] = nil
      elseif second > now_s + ahead then
        local amount = redis.call('HGET', key, whole(second))
        redis.call('HDEL', key, whole(second))
        used[second] = nil
        add(key, used, now_s, amount)
      end
    end
  end
  local others, num_others = {}, 0
  for name, entry in pairs(entries) do
    if entry[EXPIRES] > now + lease then
      entry[EXPIRES] = now + lease
      put(key, name, entry)
    end
    if entry[EXPIRES] <= now then
      if entry[HELD] > 0 and meter.keeps then
        add(key, used, 0, whole(entry[HELD]))
        entry[KEPT] = entry[HELD]
      end
      local is_changed = entry[HELD] > 0 or entry[NEED] > 0
      entry[HELD], entry[NEED] = 0, 0
      if entry[EXPIRES] + meter.keep <= now then
        redis.call('HDEL', key, name)
        entries[name] = nil
      elseif is_changed then
        put(key, name, entry)
      end
    elseif name ~= me then
      others[name] = entry
      num_others = num_others + 1
    end
  end
  return others, num_others
end

local function fits_at(used, over, ends)
  if ends ~= 0 then return ends end
  local noted = {}
  for second in pairs(used) do noted[#noted + 1] = second end
  table.sort(noted)
  for _, second in ipairs(noted) do
    over = over - used[second]
    if over <= 0 then return second + window + 1 end
  end
  return 0
end
local function resets_at(used, ends)
  local last
  for second in pairs(used) do last = math.max(last or second, second) end
  if not last then return 0 end
  return ends == 0 and last + window + 1 or ends
end

local function grant(used, meter, mine, others, num_others, is_behind)
  local total, held_by_others, reserved = sum(used), 0, 0
  for _, entry in pairs(others) do
    held_by_others = held_by_others + entry[HELD]
    reserved = reserved + math.max(0, entry[NEED] - entry[HELD])
  end
  local free = meter.limit - total - held_by_others - mine[HELD]
  local lacking, granted, is_called, retry = meter.need - mine[HELD], 0, false, 0
  if free < 0 then
    granted = -math.min(meter.spare, -free)
  elseif not is_behind then
    if lacking > 0 and lacking <= free then granted = lacking end
    local part = math.floor(math.max(0, free - granted - reserved) / (spare_parts * (num_others + 2)))
    granted = granted + math.max(0, math.min(meter.wanted - mine[HELD] - granted, part))
  end
  local more = math.max(0, granted)
  mine[HELD] = mine[HELD] + more
  free = math.max(0, free - more)
  if lacking > more and not is_behind then
    is_called = lacking <= free + held_by_others and held_by_others > 0
    if not is_called then
      retry = fits_at(used, total + held_by_others + math.max(0, meter.need) - meter.limit, meter.ends)
    end
  end
  return granted, total, free, retry, is_called
end

local function settle(key, meter, uses)
  local used, entries = read(key)
  local others, num_others = tidy(key, used, entries, meter)
  local mine = entries[me]
  if mine and report <= mine[REPORT] then return {0, mine[BATCH], sum(used), 0, 0, 0, 0, 0, 1, 0} end
  mine = mine or {0, 0, 0, 0, 0, 0}
  if mine[KEPT] > 0 then
    add(key, used, 0, whole(-mine[KEPT]))
    mine[KEPT] = 0
  end
  local before = sum(used) + mine[HELD]
  local is_behind = meter.base ~= mine[BATCH]
  local held = meter.spare
  if is_behind then
    local untold = 0
    for place = 2, #uses, 2 do untold = untold + tonumber(uses[place]) end
    held = math.max(mine[HELD], meter.spare + math.max(0, untold))
  else
    for place = 1, #uses, 2 do
      local second = tonumber(uses[place])
      if meter.ends ~= 0 then
        add(key, used, 0, uses[place + 1])
      elseif second >= now_s - window then
        add(key, used, math.min(second, now_s + ahead), uses[place + 1])
      end
    end
    mine[BATCH] = report
  end
  mine[REPORT], mine[HELD], mine[NEED], mine[EXPIRES] = report, held, meter.need, now + lease
  local granted, total, free, retry, is_called = grant(used, meter, mine, others, num_others, is_behind)
  put(key, me, mine)
  redis.call('PEXPIREAT', key, whole(math.max(meter.ends * 1000, now) + meter.keep))
  local is_told = is_called
  if before - total - mine[HELD] > 0 then
    for _, entry in pairs(others) do
      local lacking = entry[NEED] - entry[HELD]
      if lacking > 0 and lacking <= free then is_told = true end
    end
  end
  return {granted, mine[BATCH], total, free, resets_at(used, meter.ends), retry, is_behind and 1 or 0,
    is_called and 1 or 0, 0, is_told and 1 or 0}
end

local answer, called, at = {now}, {}, 8
for _, key in ipairs(KEYS) do
  local meter = {ends = tonumber(ARGV[at + 2]), keep = tonumber(ARGV[at + 3]), keeps = ARGV[at + 4] == '1',
    limit = tonumber(ARGV[at + 5]), spare = tonumber(ARGV[at + 6]), wanted = tonumber(ARGV[at + 7]),
    need = tonumber(ARGV[at + 8]), base = tonumber(ARGV[at + 9])}
  local uses, num_uses = {}, tonumber(ARGV[at + 10])
  for place = 1, 2 * num_uses do uses[place] = ARGV[at + 10 + place] end
  local numbers = settle(key, meter, uses)
  if numbers[10] == 1 then called[#called + 1] = ARGV[at + 1] end
  for _, number in ipairs(numbers) do answer[#answer + 1] = number end
  at = at + 10 + 2 * num_uses
end
if #called > 0 then redis.call('PUBLISH', channel, ARGV[2] .. '\\n' .. table.concat(called, '\\n')) end
return answer
"""
