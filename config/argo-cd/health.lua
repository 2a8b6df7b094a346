-- Health of Bulkhead's objects for Argo CD: what their conditions say, as kstatus reads them. Argo CD itself calls every object of
-- a kind that it does not know healthy as soon as it is there.
local status = obj.status
if status == nil or status.observedGeneration ~= nil and status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "the controller has not looked at it yet"}
end
local found = {}
for _, condition in ipairs(status.conditions or {}) do
  found[condition.type] = condition
end
if found.Stalled ~= nil and found.Stalled.status == "True" then
  return {status = "Degraded", message = found.Stalled.reason .. ": " .. found.Stalled.message}
end
if found.Ready == nil then
  return {status = "Progressing", message = "the controller has not said whether it is ready"}
end
local message = found.Ready.reason .. ": " .. found.Ready.message
if found.Ready.status == "True" then
  return {status = "Healthy", message = message}
end
return {status = "Progressing", message = message}
