# Installs nextn's programs from a release into the user's folder; no administrator, no compiler.
#
#   .\install.ps1                              into %LOCALAPPDATA%\Programs\nextn
#   .\install.ps1 -Prefix C:\tools\nextn       elsewhere
#   .\install.ps1 -From FOLDER|URL             from a folder, or another address, that holds a release's files
#   .\install.ps1 -Remove                      takes it away
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

$bin = Join-Path $Prefix 'bin'

function Set-UserPath([scriptblock]$change) {
    $parts = @([Environment]::GetEnvironmentVariable('Path', 'User') -split ';' | Where-Object { $_ })
    [Environment]::SetEnvironmentVariable('Path', ((& $change $parts) -join ';'), 'User')
}

if ($Remove) {
    if (-not (Test-Path (Join-Path $bin 'nextn-cli.exe'))) { throw "nextn is not installed in $Prefix" }
    Remove-Item -Recurse -Force $Prefix
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
    Set-UserPath { param($parts) @($parts | Where-Object { $_ -ne $bin }) + $bin }
    Write-Output @($version)[0]
    Write-Output "installed in $Prefix; open a new terminal, where it is in PATH"
} finally {
    Remove-Item -Recurse -Force $work
}
