"""timeball.domain.values"""
