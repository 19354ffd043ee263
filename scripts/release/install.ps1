# Installs nextn's programs from a release into the user's folder; no administrator, no compiler.
#
#   .\install.ps1                              into %LOCALAPPDATA%\Programs\nextn
#   .\install.ps1 -Prefix C:\tools\nextn       elsewhere
#   .\install.ps1 -From FOLDER|URL             from a folder, or another address, that holds a release's files
#   .\install.ps1 -Remove                      takes away what it installed
#
# The archive is held to the release's SHA256SUMS before it is unpacked.
[CmdletBinding()]
param(
    [string]$From = '@URL@',
    [string]$Prefix = (Join-Path $env:LOCALAPPDATA 'Programs\nextn'),
    [switch]$Remove
)
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
Set-StrictMode -Version 2

# Of a relative folder, which would not do in PATH, too.
$Prefix = $ExecutionContext.SessionState.Path.GetUnresolvedProviderPathFromPSPath($Prefix)
$bin = Join-Path $Prefix 'bin'
$doc = Join-Path $Prefix 'doc'
$list = Join-Path $doc 'FILES'

function Set-UserPath([scriptblock]$change) {
    $parts = @([Environment]::GetEnvironmentVariable('Path', 'User') -split ';' | Where-Object { $_ })
    [Environment]::SetEnvironmentVariable('Path', ((& $change $parts) -join ';'), 'User')
}

# Of earlier files those that are still there.
function Remove-Files([string[]]$names) {
    $paths = $names | ForEach-Object { Join-Path $Prefix $_ } | Where-Object { Test-Path -LiteralPath $_ }
    foreach ($path in $paths) { Remove-Item -Force -LiteralPath $path }
}

if ($Remove) {
    if (-not (Test-Path -LiteralPath $list)) { throw "nothing was installed by this script in $Prefix" }
    Remove-Files (Get-Content -LiteralPath $list)
    Remove-Item -Force -LiteralPath $list
    # Folders stay where anything else is in them.
    foreach ($folder in $bin, $doc, $Prefix) {
        if ((Test-Path -LiteralPath $folder) -and -not (Get-ChildItem -Force -LiteralPath $folder)) { Remove-Item -LiteralPath $folder }
    }
    Set-UserPath { param($parts) $parts | Where-Object { $_ -ne $bin } }
    Write-Output "removed from $Prefix"
    return
}
if ($From.StartsWith('@')) { throw 'this copy belongs to no release: say where the files are with -From FOLDER|URL' }
if (-not [Environment]::Is64BitOperatingSystem -or $env:PROCESSOR_ARCHITECTURE -notin 'AMD64', 'ARM64') {
    throw "there is no archive for $env:PROCESSOR_ARCHITECTURE"
}
# Windows on ARM runs x86-64 programs.
$target = 'x86_64-pc-windows-gnu'

$work = Join-Path ([IO.Path]::GetTempPath()) ([Guid]::NewGuid())
New-Item -ItemType Directory $work | Out-Null
try {
    function Get-Part([string]$name) {
        $to = Join-Path $work $name
        if ($From -match '^https?://') {
            [Net.ServicePointManager]::SecurityProtocol = [Net.ServicePointManager]::SecurityProtocol -bor [Net.SecurityProtocolType]::Tls12
            Invoke-WebRequest -UseBasicParsing "$From/$name" -OutFile $to
        } else {
            Copy-Item (Join-Path $From $name) $to
        }
        $to
    }
    $sums = Get-Content (Get-Part 'SHA256SUMS')
    $line = @($sums | Where-Object { $_ -match "^[0-9a-f]{64}  nextn-[0-9].*-$target\.zip$" })
    if ($line.Count -ne 1) { throw "SHA256SUMS lists $($line.Count) archives for $target, not one" }
    $wanted, $name = $line[0] -split '  ', 2
    $archive = Get-Part $name
    $found = (Get-FileHash -Algorithm SHA256 $archive).Hash.ToLowerInvariant()
    if ($found -ne $wanted) { throw "$name is not what SHA256SUMS says: $wanted expected, $found found" }
    Expand-Archive $archive $work
    $tree = Join-Path $work ([IO.Path]::GetFileNameWithoutExtension($name))
    $version = & (Join-Path $tree 'bin\nextn-cli.exe') --version
    if ($LASTEXITCODE -ne 0) { throw "the programs do not run here: $version" }
    New-Item -ItemType Directory -Force $Prefix | Out-Null
    Copy-Item -Recurse -Force (Join-Path $tree '*') $Prefix
    $files = @(Get-ChildItem -LiteralPath $tree -Recurse -File -Name)
    # What an earlier version had and this one has not goes.
    if (Test-Path -LiteralPath $list) {
        $old = @(Get-Content -LiteralPath $list | Where-Object { $_ -notin $files })
        if ($old) { Remove-Files $old }
    }
    Set-Content -LiteralPath $list $files
    Set-UserPath { param($parts) @($parts | Where-Object { $_ -ne $bin }) + $bin }
    Write-Output @($version)[0]
    Write-Output "installed in $Prefix; open a new terminal, where it is in PATH"
} finally {
    Remove-Item -Recurse -Force $work
}
